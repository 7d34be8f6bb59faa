"""What of a trace's prompts a cache of a given size would have held already: how large a tier is worth having."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable

from trivet.framework.engine.replay.trace import Arrival


class PrefixCache:
    """Blocks of prompts, the least recently used given up first, of a prompt its end before its beginning. `num_blocks`
    None never gives one up."""

    def __init__(self, num_blocks: int | None) -> None:
        self.num_asked = self.num_hits = 0
        self._num_blocks = num_blocks
        self._held: OrderedDict[int, None] = OrderedDict()

    @property
    def hit_rate(self) -> float:
        return self.num_hits / self.num_asked if self.num_asked else 0.0

    def take(self, arrival: Arrival) -> None:
        """Ask for the prompt's blocks; all of them are held from now on."""
        hits = 0
        for block in arrival.blocks:
            if block not in self._held:
                break
            hits += 1
        for block in reversed(arrival.blocks):
            self._held[block] = None
            self._held.move_to_end(block)
        while self._num_blocks is not None and len(self._held) > self._num_blocks:
            self._held.popitem(last=False)
        self.num_asked += len(arrival.blocks)
        self.num_hits += hits


def hit_rates(arrivals: Iterable[Arrival], sizes: Iterable[int | None]) -> dict[int | None, float]:
    """The share of blocks found, for caches of so many blocks."""
    listed = list(arrivals)
    rates = {}
    for size in sizes:
        cache = PrefixCache(size)
        for arrival in listed:
            cache.take(arrival)
        rates[size] = cache.hit_rate
    return rates


def size_for(arrivals: Iterable[Arrival], share: float) -> int:
    """The fewest blocks of a cache that finds this share, 0 to 1, of all that any cache would find."""
    listed = list(arrivals)
    wanted = share * hit_rates(listed, [None])[None]
    sizes = range(len({block for arrival in listed for block in arrival.blocks}) + 1)
    return bisect_left(sizes, wanted, key=lambda size: hit_rates(listed, [size])[size])
