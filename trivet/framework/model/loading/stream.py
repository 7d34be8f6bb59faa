"""Ranges of files in windows: one is read while another is taken, and two of them are all the memory it needs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from trivet.base.dtypes import Array
from trivet.base.units import MIB
from trivet.framework.memory.arena import Arena
from trivet.framework.memory.mapped import check_files
from trivet.framework.model.loading.extents import Range
from trivet.framework.model.loading.read import ReadOptions, ReadReport, read_into_arena

# Long enough that starting and ending a read are not seen beside it (a sixth of a second at 3 GB/s); short enough for
# every process of a host that loads to have two of them.
WINDOW_BYTES = 512 * MIB


class Stream:
    """The bytes of ranges, once over, read a window ahead of whoever takes them.

    Iterating raises CheckpointError and ResourceError as `read_into_arena` does, and the first also when a file is cut
    while its bytes are taken. One who stops early waits for the window that is being read.
    """

    def __init__(self, ranges: Iterable[Range], options: ReadOptions, window_bytes: int = WINDOW_BYTES) -> None:
        self._windows = _windows(ranges, window_bytes)
        self._options = options
        self._reports: list[ReadReport] = []
        self.waited_s = 0.0  # by the taker, for bytes

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        """Each range's name and bytes, [num_bytes] uint8, files in the order given. A window's memory goes with the
        last of its arrays."""
        with ThreadPoolExecutor(1, "trivet-read") as reader:
            coming = reader.submit(self._read, self._windows[0])
            for window, following in zip(self._windows, (*self._windows[1:], None), strict=True):
                began = time.perf_counter()
                arena, places, report = coming.result()
                self.waited_s += time.perf_counter() - began
                self._reports.append(report)
                if following is not None:
                    coming = reader.submit(self._read, following)
                for each in window:  # a tensor without elements is nowhere
                    yield each.name, arena.view(places.get(each.name, 0), (each.num_bytes,), np.uint8)
                check_files()  # that stand in the window

    @property
    def report(self) -> ReadReport:
        """How the windows taken so far were read; `cpu_s` is of the process, so the taker's work is in it."""
        return ReadReport(
            num_bytes=sum(each.num_bytes for each in self._reports),
            seconds=sum(each.seconds for each in self._reports),
            cpu_s=sum(each.cpu_s for each in self._reports),
            hash_s=sum(each.hash_s for each in self._reports),
            verified=sum(each.verified for each in self._reports),
            extents=tuple(extent for each in self._reports for extent in each.extents),
            arena_bytes=max((each.arena_bytes for each in self._reports), default=0),
        )

    def _read(self, window: Sequence[Range]) -> tuple[Arena, dict[str, int], ReadReport]:
        return read_into_arena(window, lambda num_bytes: Arena(num_bytes, "weights"), self._options)


def _windows(ranges: Iterable[Range], window_bytes: int) -> list[list[Range]]:
    """The ranges file by file, as their bytes lie, in windows of at most `window_bytes`; a larger range has its own."""
    files: dict[object, list[Range]] = {}
    for each in ranges:
        files.setdefault(each.file, []).append(each)
    windows: list[list[Range]] = [[]]
    filled = 0
    for own in files.values():
        for each in sorted(own, key=lambda each: (each.offset, each.num_bytes)):
            if windows[-1] and filled + each.num_bytes > window_bytes:
                windows.append([])
                filled = 0
            windows[-1].append(each)
            filled += each.num_bytes
    return windows
