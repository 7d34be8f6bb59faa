"""Blocks of KV cache in host memory: where slots sink to, and where what comes from files lands.

One arena, reserved at start, in equal blocks. It has no lock; who shares it between threads has one.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

import numpy as np

from trivet.base.dtypes import Array
from trivet.base.errors import ResourceError
from trivet.base.units import format_bytes
from trivet.framework.memory.arena import Arena
from trivet.framework.memory.chain import Link


@dataclass
class HostBlock:
    """A block that is filled or being filled. While `num_pins` is not 0 its bytes stay where and what they are."""

    link: Link
    payload: Array  # uint8 [block_bytes], of the arena
    checksums: tuple[int, ...] = ()  # XXH3-64 of the pieces of the payload, once it is filled
    num_pins: int = 0
    is_from_files: bool = False


class HostTier:
    """As many blocks of `block_bytes` as fit in `num_bytes`. Raises ResourceError when none does."""

    def __init__(self, num_bytes: int, block_bytes: int) -> None:
        self.num_blocks = blocks_in(num_bytes, block_bytes)
        self._arena = Arena(self.num_blocks * block_bytes, "KV host tier", "--kv-host-bytes")
        self._free = [self._arena.view(i * block_bytes, (block_bytes,), np.uint8) for i in range(self.num_blocks)][::-1]
        self._blocks: OrderedDict[bytes, HostBlock] = OrderedDict()  # by name, the next to go first

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, name: bytes) -> HostBlock | None:
        return self._blocks.get(name)

    def reserve(self, link: Link) -> HostBlock | None:
        """Room for a block that the caller fills, pinned once and not to be found yet; None while all are pinned."""
        if not self._free and not self._evict():
            return None
        return HostBlock(link, self._free.pop(), num_pins=1)

    def keep(self, block: HostBlock) -> None:
        """The reserved block is filled: from now on it is found. One of the same name must not be there."""
        assert block.link.name not in self._blocks, "a block kept twice"
        self._blocks[block.link.name] = block

    def unpin(self, block: HostBlock) -> None:
        block.num_pins -= 1
        assert block.num_pins >= 0, "unpinned more often than pinned"
        if block.num_pins == 0 and self._blocks.get(block.link.name) is not block:
            self._free.append(block.payload)

    def touch(self, block: HostBlock, *, is_last: bool = True) -> None:
        """Used now: it goes last; or first, when it is not worth its place any more."""
        if self._blocks.get(block.link.name) is block:
            self._blocks.move_to_end(block.link.name, last=is_last)

    def drop(self, block: HostBlock) -> None:
        """No longer to be found; its bytes are free once nobody pins it."""
        if self._blocks.get(block.link.name) is block:
            del self._blocks[block.link.name]
            if block.num_pins == 0:
                self._free.append(block.payload)

    def check(self) -> None:
        """Nothing is pinned, and every block of the arena is free or found, once."""
        assert not any(block.num_pins for block in self._blocks.values()), "idle, and a block is pinned"
        payloads = [*self._free, *(block.payload for block in self._blocks.values())]
        places = Counter(payload.ctypes.data for payload in payloads)
        assert len(places) == len(payloads) == self.num_blocks, f"{len(places)} of {self.num_blocks} blocks accounted"

    def close(self) -> None:
        """Give the memory back."""
        self._free.clear()
        self._blocks.clear()
        self._arena.close()

    def _evict(self) -> bool:
        for name, block in self._blocks.items():
            if block.num_pins == 0:
                del self._blocks[name]
                self._free.append(block.payload)
                return True
        return False


def blocks_in(num_bytes: int, block_bytes: int) -> int:
    """How many blocks fit in so much memory. Raises ResourceError when none does."""
    if num_bytes < block_bytes:
        raise ResourceError(
            f"--kv-host-bytes is {format_bytes(num_bytes)}, one block of this model is {format_bytes(block_bytes)}",
            "ask for more, or leave it out",
        )
    return num_bytes // block_bytes
