"""What is behind a simulated KV pool: how much of it there is, and how long moving takes. It keeps no bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from trivet.base.dtypes import Array
from trivet.framework.engine.replay.clock import Clock
from trivet.framework.memory.chain import Link
from trivet.framework.memory.file_tier import FileCounts, blocks_in


@dataclass(frozen=True)
class Behind:
    """What is behind a pool, in bytes and bytes a second; without `folder_bytes` there are no files."""

    slot_bytes: int
    host_bytes: int
    host_bytes_per_s: float  # of a copy from a slot or back, while which nothing is computed
    folder_bytes: int | None
    folder_bytes_per_s: float  # of reading, and of writing
    num_pieces: int  # of a slot, that a step waits for one after the other


class TimedMemory:
    """Slots whose copies take time. A piece of one is a byte here."""

    def __init__(self, behind: Behind, clock: Clock) -> None:
        self.slot_bytes = behind.num_pieces
        self.pieces = tuple(slice(number, number + 1) for number in range(behind.num_pieces))
        self._slot_s = behind.slot_bytes / behind.host_bytes_per_s
        self._clock = clock

    def read_slot(self, slot: int, into: Array) -> None:
        into[:] = 0
        self._clock.now_s += self._slot_s

    def write_slot(self, slot: int, piece: slice, source: Array) -> None:
        self._clock.now_s += self._slot_s / len(self.pieces)


class TimedFiles:
    """Names of blocks, the one used longest ago given up first; reading and writing one takes time.

    Raises ResourceError when the folder has no room for a block.
    """

    def __init__(self, folder_bytes: int, behind: Behind, clock: Clock) -> None:
        self.counts = FileCounts()
        self.read_s = 0.0  # spent on it
        self._num_blocks = blocks_in(folder_bytes, behind.slot_bytes)
        self._slot_bytes = behind.slot_bytes
        self.block_s = behind.slot_bytes / behind.folder_bytes_per_s  # of reading one, or of writing one
        self._num_pieces = behind.num_pieces
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()  # name → checksums, the next to go first
        self._pinned: set[bytes] = set()

    @property
    def used_bytes(self) -> int:
        return len(self._kept) * self._slot_bytes

    def holds(self, link: Link) -> bool:
        return link.name in self._kept

    def look(self) -> None:
        """Nobody else writes here."""

    def begin(self, link: Link) -> tuple[int, ...] | None:
        found = self._kept.get(link.name)
        if found is not None:
            self._kept.move_to_end(link.name)
        return found

    def read(self, link: Link, into: Array) -> tuple[int, ...] | None:
        found = self.begin(link)
        if found is not None:
            self._read(into, self.block_s)
        return found

    def read_piece(self, link: Link, number: int, recorded: int, into: Array) -> bool:
        self._read(into, self.block_s / self._num_pieces)
        return True

    def publish(self, blocks: Sequence[tuple[Link, Array, tuple[int, ...]]]) -> None:
        for link, _, checksums in blocks:
            if self.holds(link) or not self._make_room():
                continue
            self._clock.now_s += self.block_s
            self._kept[link.name] = checksums
            self.counts.written += 1

    def pin(self, links: Sequence[Link]) -> None:
        self._pinned.update(link.name for link in links)

    def forget(self, links: Sequence[Link]) -> None:
        for link in links:
            self._kept.pop(link.name, None)

    def scrub_next(self) -> bool:
        return False  # nothing decays

    def close(self) -> None:
        self._kept.clear()

    def _read(self, into: Array, seconds: float) -> None:
        into[:] = 0
        self._clock.now_s += seconds
        self.read_s += seconds

    def _make_room(self) -> bool:
        if len(self._kept) < self._num_blocks:
            return True
        oldest = next((name for name in self._kept if name not in self._pinned), None)
        if oldest is None:
            return False
        del self._kept[oldest]
        self.counts.evicted += 1
        return True
