"""Ranges of files into the memory of a device: a ring of pinned host buffers, read into and copied out of in turn.

The device's memory is laid out as an arena on the host would be; each buffer is filled with the next window of it.
While one window is copied the next is read, and no tensor is ever an object of its own on the way.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trivet._native import Hash, Reading
from trivet.base.units import MIB
from trivet.driver.devices.memory import Copy, DeviceMemory, HostBuffer, Memory
from trivet.framework.model.loading.engines import Choice, Engine
from trivet.framework.model.loading.extents import BLOCK_BYTES, Extent, Placement, Range, place
from trivet.framework.model.loading.read import (
    ExtentReport,
    ReadOptions,
    ReadReport,
    choose_all,
    compare,
    finish,
    opened,
    raise_failure,
    start_reading,
)
from trivet.framework.model.loading.source import Source

# Copies below 2 MiB leave a link of PCIe idle part of the time; two buffers are the least that overlap.
BUFFER_BYTES = 32 * MIB
NUM_BUFFERS = 2


@dataclass(frozen=True)
class _Part:
    """Of an extent, what lies in one window."""

    extent: Extent
    choice: Choice
    resident: float | None


@dataclass
class _Fill:
    """A buffer on its way through one window of the arena."""

    start: int  # of the window in the arena
    end: int
    buffer: HostBuffer
    number: int  # of the buffer
    parts: list[_Part]
    readings: list[tuple[Reading, list[_Part]]]
    begun: float


def read_to_device(
    ranges: Iterable[Range],
    memory_for: Callable[[int], Memory],
    options: ReadOptions,
    *,
    buffer_bytes: int = BUFFER_BYTES,
    num_buffers: int = NUM_BUFFERS,
) -> tuple[Memory, dict[str, int], ReadReport]:
    """The memory that `memory_for` makes of a number of bytes, where in it each range begins, and how it got there.

    `buffer_bytes` is a multiple of BLOCK_BYTES. Raises as `read_into_arena`, and ResourceError for a device that has
    not the memory or whose copies fail. By then nothing is in flight and the device's memory is given back.
    """
    assert buffer_bytes % BLOCK_BYTES == 0 and num_buffers > 0, f"a ring of {num_buffers} × {buffer_bytes} bytes"
    placement = place(ranges)
    with opened(placement) as sources:
        memory = memory_for(placement.num_bytes)
        ring = _Ring(memory, sources, options, buffer_bytes, num_buffers)
        try:
            report = ring.run(placement)
        except BaseException:
            ring.cancel()
            memory.close()
            raise
    return memory, {wanted.name: e.place_of(wanted) for e in placement.extents for wanted in e.ranges}, report


class _Ring:
    def __init__(
        self,
        memory: DeviceMemory,
        sources: Mapping[Path, Source],
        options: ReadOptions,
        buffer_bytes: int,
        num_buffers: int,
    ) -> None:
        self._memory = memory
        self._sources = sources
        self._options = options
        self._buffer_bytes = buffer_bytes
        self._num_buffers = num_buffers
        self._buffers: list[HostBuffer] = []
        self._copies: list[Copy | None] = [None] * num_buffers
        self._filling: deque[_Fill] = deque()
        self._done = 0
        self._hash_s = 0.0
        self._copy_s = 0.0
        self._reports: list[ExtentReport] = []

    def run(self, placement: Placement) -> ReadReport:
        started, cpu_started = time.perf_counter(), time.process_time()
        total = sum(extent.num_bytes for extent in placement.extents)
        checks = Checks(placement) if self._options.verify else None
        self._buffers = [self._memory.host_buffer(self._buffer_bytes) for _ in range(self._num_buffers)]
        chosen = choose_all(placement, self._sources, self._options)
        for i, (window, extents) in enumerate(windows(placement, self._buffer_bytes)):
            parts = [_Part(extent, *chosen[which]) for which, extent in extents]
            number = i % self._num_buffers
            # A copy that is still under way holds the buffer up: hash and queue what has been read meanwhile. One that
            # is done does not, and then the disk gets its next reads before anything is hashed.
            while self._filling and self._is_copying(number):
                self._copy_oldest(checks, started, total)
            self._begin(number, window, parts, time.perf_counter() - started)
            if len(self._filling) == self._num_buffers:
                self._copy_oldest(checks, started, total)
        while self._filling:
            self._copy_oldest(checks, started, total)
        for number in range(self._num_buffers):
            self._wait_for_copy(number)
        return ReadReport(
            num_bytes=total,
            seconds=time.perf_counter() - started,
            cpu_s=time.process_time() - cpu_started,
            hash_s=self._hash_s,
            verified=0 if checks is None else checks.num_bytes,
            extents=tuple(self._reports),
            arena_bytes=placement.num_bytes,
            copy_s=self._copy_s,
        )

    def cancel(self) -> None:
        """No read is in flight when it returns; copies are the memory's to wait for."""
        for fill in self._filling:
            for reading, _ in fill.readings:
                reading.cancel()

    def _begin(self, number: int, start: int, parts: list[_Part], begun: float) -> None:
        self._wait_for_copy(number)
        buffer = self._buffers[number]
        by_engine: dict[Engine, list[_Part]] = defaultdict(list)
        for part in parts:
            by_engine[part.choice.engine].append(part)
        fill = _Fill(start, end_of(part.extent for part in parts), buffer, number, parts, [], begun)
        self._filling.append(fill)
        for engine, own in by_engine.items():
            extents = [part.extent for part in own]
            reading, _ = start_reading(engine, extents, buffer.address - start, self._sources, verify=False)
            fill.readings.append((reading, own))

    def _copy_oldest(self, checks: Checks | None, started: float, total: int) -> None:
        fill = self._filling[0]
        for reading, parts in fill.readings:
            finish(reading, lambda read: self._options.progress(self._done + read, total))
            raise_failure(reading, [part.extent for part in parts])
            self._done += reading.bytes_read
        end_s = time.perf_counter() - started
        self._reports += [self._report(part, fill, end_s) for part in fill.parts]
        if checks is not None:
            hash_started = time.perf_counter()
            checks.take(fill.start, fill.end, fill.buffer.address)
            self._hash_s += time.perf_counter() - hash_started
        self._filling.popleft()
        self._copies[fill.number] = self._memory.copy(fill.buffer, 0, fill.end - fill.start, fill.start)
        self._options.progress(self._done, total)

    def _is_copying(self, number: int) -> bool:
        copy = self._copies[number]
        return copy is not None and not copy.is_done

    def _wait_for_copy(self, number: int) -> None:
        copy, self._copies[number] = self._copies[number], None
        if copy is None:
            return
        started = time.perf_counter()
        copy.wait()
        self._copy_s += time.perf_counter() - started

    def _report(self, part: _Part, fill: _Fill, end_s: float) -> ExtentReport:
        extent, facts = part.extent, self._sources[part.extent.file].facts
        return ExtentReport(
            extent.file, extent.num_bytes, facts.filesystem, part.resident, part.choice.engine.name,
            part.choice.reason, fill.begun, end_s, fill.number,
        )  # fmt: skip


class Checks:
    """Digests of ranges whose bytes come window by window, in the order of the arena."""

    def __init__(self, placement: Placement) -> None:
        places = [(e.place_of(r), r) for e in placement.extents for r in e.ranges if r.xxh3 is not None]
        self._left = deque(places)
        self._hash = Hash()
        self.num_bytes = sum(wanted.num_bytes for _, wanted in places)

    def take(self, start: int, end: int, address: int) -> None:
        """Add a window's bytes, which lie at `address`; CheckpointError when a range that ends in it is not itself."""
        while self._left:
            at, wanted = self._left[0]
            first, last = max(at, start), min(at + wanted.num_bytes, end)
            if first < last:
                self._hash.update(address + first - start, last - first)
            if at + wanted.num_bytes > end:
                return
            compare([self._hash.digest()], [wanted])
            self._left.popleft()
            self._hash = Hash()


def windows(placement: Placement, window_bytes: int) -> list[tuple[int, list[tuple[int, Extent]]]]:
    """The windows of the arena that hold anything: where each begins, and what of which extent lies in it."""
    found: dict[int, list[tuple[int, Extent]]] = defaultdict(list)
    for number, extent in enumerate(placement.extents):
        end = extent.at + extent.num_bytes
        for start in range(extent.at // window_bytes * window_bytes, end, window_bytes):
            at, stop = max(extent.at, start), min(end, start + window_bytes)
            offset = extent.offset + at - extent.at
            part = replace(extent, offset=offset, num_bytes=stop - at, at=at, ranges=_within(extent, offset, stop - at))
            found[start].append((number, part))
    return sorted(found.items())


def end_of(extents: Iterable[Extent]) -> int:
    """Where in the arena the last of them ends."""
    return max(extent.at + extent.num_bytes for extent in extents)


def _within(extent: Extent, offset: int, num_bytes: int) -> tuple[Range, ...]:
    """The ranges of an extent that have bytes in a part of it, for what is said when they cannot be read."""
    end = offset + num_bytes
    inside = tuple(each for each in extent.ranges if each.offset < end and offset < each.offset + each.num_bytes)
    return inside or extent.ranges[-1:]
