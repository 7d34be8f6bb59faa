"""How many of the blocks that the pool gives up are wanted again while host memory would still have them.

Names only: what is counted is the same whether a block was copied there or left to be computed again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from trivet.framework.memory.chain import Link

_WEIGHT = 1 / 2048  # of the newest block in the running mean: a prompt's blocks, a hundred of them, are wanted together


class Demand:
    """`share` is None until the fate of a block is known."""

    def __init__(self, num_blocks: int) -> None:
        self.share: float | None = None
        self._num_blocks = num_blocks
        self._given_up: OrderedDict[bytes, None] = OrderedDict()  # the next to be forgotten first

    def give_up(self, link: Link) -> None:
        """The pool has it no more."""
        self._given_up[link.name] = None
        self._given_up.move_to_end(link.name)
        if len(self._given_up) > self._num_blocks:
            self._given_up.popitem(last=False)
            self._learn(0.0)

    def want(self, links: Iterable[Link]) -> None:
        """Whoever begins now would take the first of these."""
        for link in links:
            if link.name not in self._given_up:
                return
            del self._given_up[link.name]
            self._learn(1.0)

    def _learn(self, wanted: float) -> None:
        self.share = wanted if self.share is None else self.share + _WEIGHT * (wanted - self.share)
