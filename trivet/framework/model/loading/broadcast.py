"""One rank reads, the others receive: ranges of files into the memory of each, window by window of the ring.

Every rank knows the windows from the ranges alone. Before each all ask one another whether to go on, so that what goes
wrong in one ends all of them with the same sentence, and nobody waits for bytes that will not come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol

from trivet.base.errors import TrivetError
from trivet.driver.devices.memory import Copy, HostBuffer, Memory
from trivet.framework.model.loading.extents import Range, place
from trivet.framework.model.loading.read import ReadOptions, ReadReport
from trivet.framework.model.loading.staging import (
    BUFFER_BYTES,
    NUM_BUFFERS,
    Checks,
    end_of,
    read_to_device,
    windows,
)

READER = 0  # the rank that reads


class Group(Protocol):
    """The ranks that load together, as one sees them. All raise ResourceError when another is gone or silent."""

    @property
    def rank(self) -> int: ...

    @property
    def num_ranks(self) -> int: ...

    def broadcast(self, address: int, num_bytes: int) -> None:
        """Bytes in the memory of rank 0 to the same number at `address` here."""
        ...

    def agree(self, failure: TrivetError | None = None) -> None:
        """Return when every rank is here and well; else raise ResourceError on all, with what one of them failed of."""
        ...

    def tell(self, failure: TrivetError) -> None:
        """Let the others know when they next `agree`, unless they know that something failed."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


def read_together(
    ranges: Iterable[Range],
    memory_for: Callable[[int], Memory],
    options: ReadOptions,
    group: Group,
    *,
    buffer_bytes: int = BUFFER_BYTES,
    num_buffers: int = NUM_BUFFERS,
) -> tuple[Memory, dict[str, int], ReadReport]:
    """As `read_to_device`, on every rank with the same ranges and buffers; only rank 0 opens the files.

    Every rank verifies what it has. Raises what `read_to_device` raises where it happens, and ResourceError with the
    same sentence on the other ranks.
    """
    wanted = list(ranges)
    try:
        if group.rank == READER:
            memory, places, report = _send(wanted, memory_for, options, group, buffer_bytes, num_buffers)
        else:
            memory, places, report = _receive(wanted, memory_for, options, group, buffer_bytes, num_buffers)
    except TrivetError as error:
        group.tell(error)
        raise
    try:
        group.agree()  # nobody has the weights before all have
    except TrivetError:
        memory.close()
        raise
    return memory, places, report


def _send(
    ranges: list[Range],
    memory_for: Callable[[int], Memory],
    options: ReadOptions,
    group: Group,
    buffer_bytes: int,
    num_buffers: int,
) -> tuple[Memory, dict[str, int], ReadReport]:
    sending, places, report = read_to_device(
        ranges,
        lambda num_bytes: _Sending(memory_for(num_bytes), group),
        options,
        buffer_bytes=buffer_bytes,
        num_buffers=num_buffers,
    )
    return sending.own, places, report


def _receive(
    ranges: list[Range],
    memory_for: Callable[[int], Memory],
    options: ReadOptions,
    group: Group,
    buffer_bytes: int,
    num_buffers: int,
) -> tuple[Memory, dict[str, int], ReadReport]:
    started, cpu_started, hash_s = time.perf_counter(), time.process_time(), 0.0
    placement = place(ranges)
    checks = Checks(placement) if options.verify else None
    total = sum(extent.num_bytes for extent in placement.extents)
    received = 0
    memory = memory_for(placement.num_bytes)
    try:
        buffers = [memory.host_buffer(buffer_bytes) for _ in range(num_buffers)]
        copies: deque[Copy] = deque()
        for i, (start, parts) in enumerate(windows(placement, buffer_bytes)):
            buffer, end = buffers[i % num_buffers], end_of(extent for _, extent in parts)
            if len(copies) == num_buffers:
                copies.popleft().wait()  # the one that has this buffer
            group.agree()
            group.broadcast(buffer.address, end - start)
            if checks is not None:
                hash_started = time.perf_counter()
                checks.take(start, end, buffer.address)
                hash_s += time.perf_counter() - hash_started
            copies.append(memory.copy(buffer, 0, end - start, start))
            received += sum(extent.num_bytes for _, extent in parts)
            options.progress(received, total)
        for copy in copies:
            copy.wait()
    except BaseException:
        memory.close()
        raise
    report = ReadReport(
        num_bytes=0,
        seconds=time.perf_counter() - started,
        cpu_s=time.process_time() - cpu_started,
        hash_s=hash_s,
        verified=0 if checks is None else checks.num_bytes,
        extents=(),
        arena_bytes=placement.num_bytes,
        received_bytes=total,
    )
    places = {wanted.name: e.place_of(wanted) for e in placement.extents for wanted in e.ranges}
    return memory, places, report


class _Sending(Generic[Memory]):
    """A device's memory whose copies go to the other ranks too, who wait for them in the same order."""

    def __init__(self, own: Memory, group: Group) -> None:
        self.own = own
        self._group = group

    @property
    def num_bytes(self) -> int:
        return self.own.num_bytes

    def host_buffer(self, num_bytes: int) -> HostBuffer:
        return self.own.host_buffer(num_bytes)

    def copy(self, buffer: HostBuffer, start: int, num_bytes: int, to: int) -> Copy:
        copy = self.own.copy(buffer, start, num_bytes, to)  # on its way while the others get theirs
        self._group.agree()
        self._group.broadcast(buffer.address + start, num_bytes)
        return copy

    def close(self) -> None:
        self.own.close()
