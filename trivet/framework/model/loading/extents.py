"""Which bytes of which files are wanted, and where in one arena they land: decided before anything is read.

Placement is congruent: a byte's offset in the arena and in its file agree modulo a block. So files that nobody prepared
can be read directly, past the page cache; the price is up to a block before and after each run of wanted bytes. Long
runs agree modulo a huge page: then the kernel can map what the page cache has in pieces as large as it has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trivet.base.units import KIB, MIB, align_up
from trivet.framework.memory.arena import HUGE_PAGE_BYTES

BLOCK_BYTES = 4096  # what O_DIRECT wants multiples of on every device we know (512 or 4096)

# A run so long is worth up to a huge page of room before it (4.3 GB in the page cache, mapped, asked for and hashed by
# two threads: 0.17 in place of 0.21 s).
_LONG_RUN_BYTES = 64 * MIB

# Many reads of some megabytes fit, and few tensors are larger.
_EXTENT_BYTES = 64 * MIB
# A gap that costs less to read than a seek: what aligns the tensors of a package.
_GAP_BYTES = 64 * KIB


@dataclass(frozen=True)
class Range:
    """Bytes of a file that are wanted; `xxh3` is the XXH3-64 they should have, None where nobody said."""

    name: str
    file: Path
    offset: int
    num_bytes: int
    xxh3: int | None = None


@dataclass(frozen=True)
class Extent:
    """One piece of a file to be read whole, and the wanted ranges in it; `at` is where it lands in the arena."""

    file: Path
    offset: int
    num_bytes: int
    at: int
    ranges: tuple[Range, ...]

    def place_of(self, wanted: Range) -> int:
        return self.at + wanted.offset - self.offset


@dataclass(frozen=True)
class Placement:
    """Where the extents of some files lie in one arena."""

    extents: tuple[Extent, ...]  # in the order of the ranges given
    num_bytes: int  # of the arena, with all that direct reads may touch

    def check(self) -> None:
        """Direct reads of two extents share no block of the arena, unless it is the same block of their file."""
        end, before = 0, None
        for extent in self.extents:
            assert (extent.at - extent.offset) % BLOCK_BYTES == 0, "a block of the file and of memory do not agree"
            start = extent.at - extent.at % BLOCK_BYTES
            is_same_run = (
                before is not None
                and before.file == extent.file
                and extent.at - before.at == extent.offset - before.offset > 0
            )
            assert start >= end or (is_same_run and start == end - BLOCK_BYTES), "two extents share a block"
            end, before = align_up(extent.at + extent.num_bytes, BLOCK_BYTES), extent
        assert end <= self.num_bytes, "an extent ends outside the arena"


def place(ranges: Iterable[Range]) -> Placement:
    """Where each range lands. Files keep the order in which they first appear; in a file, the order of the bytes.

    Ranges of one file must not overlap.
    """
    by_file: dict[Path, list[Range]] = {}
    for wanted in ranges:
        by_file.setdefault(wanted.file, []).append(wanted)
    extents: list[Extent] = []
    end = 0  # of the arena, on a block
    for file, own in by_file.items():
        for run in _runs(sorted(own, key=lambda each: (each.offset, each.num_bytes))):
            start, run_bytes = run[0].offset, run[-1].offset + run[-1].num_bytes - run[0].offset
            at = end + (start - end) % (HUGE_PAGE_BYTES if run_bytes >= _LONG_RUN_BYTES else BLOCK_BYTES)
            for group in _groups(run):
                offset = group[0].offset
                num_bytes = group[-1].offset + group[-1].num_bytes - offset
                extents.append(Extent(file, offset, num_bytes, at + offset - start, tuple(group)))
            end = align_up(at + run_bytes, BLOCK_BYTES)
    return Placement(tuple(_without_empty(extents)), max(end, BLOCK_BYTES))


def _runs(ranges: list[Range]) -> list[list[Range]]:
    """Ranges that lie together in their file."""
    runs: list[list[Range]] = []
    end = -1
    for wanted in ranges:
        assert wanted.offset >= end, f"{wanted.name} overlaps another range of {wanted.file}"
        if not runs or wanted.offset - end > _GAP_BYTES:
            runs.append([])
        runs[-1].append(wanted)
        end = wanted.offset + wanted.num_bytes
    return runs


def _groups(run: list[Range]) -> list[list[Range]]:
    """The ranges of a run in extents of about `_EXTENT_BYTES`; none is cut."""
    groups: list[list[Range]] = [[]]
    for wanted in run:
        group = groups[-1]
        if group and wanted.offset + wanted.num_bytes - group[0].offset > _EXTENT_BYTES:
            groups.append([])
        groups[-1].append(wanted)
    return groups


def _without_empty(extents: list[Extent]) -> list[Extent]:
    return [extent for extent in extents if extent.num_bytes > 0]
