"""Ranges of files into one arena: each read once, by the engine that fits it, and hashed while it is in the cache."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from trivet._native import Reading, ring_refusal
from trivet.base.errors import CheckpointError, ResourceError
from trivet.framework.memory.arena import Arena
from trivet.framework.model.loading.engines import Choice, Engine, EngineName, choose
from trivet.framework.model.loading.extents import Extent, Placement, Range, place
from trivet.framework.model.loading.source import Source

_POLL_S = 0.1  # how long an interrupt from the keyboard may have to wait

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class ExtentReport:
    """What became of an extent; seconds count from the start of reading."""

    file: Path
    num_bytes: int
    filesystem: str | None
    resident: float | None  # share in the page cache before it was read; None if unknown
    engine: EngineName
    reason: str
    begin_s: float
    end_s: float
    worker: int


@dataclass(frozen=True)
class ReadReport:
    """How ranges of files came into memory."""

    num_bytes: int  # read from storage
    seconds: float
    cpu_s: float  # of the process, all threads
    hash_s: float  # of all threads together, part of cpu_s
    verified: int  # bytes compared with a checksum
    extents: tuple[ExtentReport, ...]
    arena_bytes: int
    huge_bytes: int | None = None  # of the arena on huge pages; None if unknown, or not asked yet
    copy_s: float | None = None  # waited for copies to a device, part of `seconds`; None where there are none
    received_bytes: int = 0  # that another rank read, and sent

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / max(self.seconds, 1e-9)

    @property
    def mapped_bytes(self) -> int:
        """For which the page cache's own pages stood in the arena."""
        return sum(each.num_bytes for each in self.extents if each.engine == "mapped")

    @property
    def resident(self) -> float | None:
        """The share of the bytes that was in the page cache before; None if any of it is unknown."""
        shares = [(each.resident, each.num_bytes) for each in self.extents]
        if any(share is None for share, _ in shares):
            return None
        return sum((share or 0.0) * size for share, size in shares) / max(self.num_bytes, 1)


def joined(reports: Sequence[ReadReport]) -> ReadReport:
    """Reads that were made one after the other as one; at least one of them."""
    extents: list[ExtentReport] = []
    before = 0.0
    for report in reports:
        extents += [replace(each, begin_s=before + each.begin_s, end_s=before + each.end_s) for each in report.extents]
        before += report.seconds
    huge, copies = [each.huge_bytes for each in reports], [each.copy_s for each in reports]
    return ReadReport(
        num_bytes=sum(each.num_bytes for each in reports),
        seconds=before,
        cpu_s=sum(each.cpu_s for each in reports),
        hash_s=sum(each.hash_s for each in reports),
        verified=sum(each.verified for each in reports),
        extents=tuple(extents),
        arena_bytes=sum(each.arena_bytes for each in reports),
        huge_bytes=None if None in huge else sum(each or 0 for each in huge),
        copy_s=None if None in copies else sum(each or 0.0 for each in copies),
        received_bytes=sum(each.received_bytes for each in reports),
    )


@dataclass(frozen=True)
class ReadOptions:
    """How to read: `engine` None chooses for each extent; `verify` compares with the checksums there are.

    `meanwhile` is called once, by the thread that waits, as soon as something is being read: what holds the GIL may
    take as long as reading does. What it raises ends the reading.
    """

    num_cpus: int
    engine: EngineName | None = None
    verify: bool = True
    progress: Progress = field(default=lambda done, total: None)
    meanwhile: Callable[[], None] | None = None


def read_into_arena(
    ranges: Iterable[Range], arena_for: Callable[[int], Arena], options: ReadOptions
) -> tuple[Arena, dict[str, int], ReadReport]:
    """The arena that `arena_for` makes of a number of bytes, where in it each range begins, and how it got there.

    Raises CheckpointError when a file cannot be opened or read, ends early, or has another checksum than it should
    (naming file, tensor and offset), ResourceError for an engine that cannot be had. The arena is gone by then.
    """
    placement = place(ranges)
    with opened(placement) as sources:
        arena = arena_for(placement.num_bytes)
        try:
            report = read_extents(placement, arena, sources, options)
        except BaseException:
            arena.close()
            raise
    places = {wanted.name: e.place_of(wanted) for e in placement.extents for wanted in e.ranges}
    return arena, places, report


@contextmanager
def opened(placement: Placement) -> Iterator[dict[Path, Source]]:
    """The files of a placement, open. Raises CheckpointError where one is absent or too short for what is wanted."""
    with ExitStack() as stack:
        sources: dict[Path, Source] = {}
        for extent in placement.extents:
            if extent.file not in sources:
                sources[extent.file] = stack.enter_context(Source(extent.file))
            found = sources[extent.file].facts.num_bytes
            if found < extent.offset + extent.num_bytes:
                raise _ended(extent, found)
        yield sources


def choose_all(
    placement: Placement, sources: Mapping[Path, Source], options: ReadOptions, may_map: bool = False
) -> list[tuple[Choice, float | None]]:
    """How each extent is to be read, and how much of it is in the page cache; `may_map` into an arena of the host."""
    refusal = ring_refusal()
    chosen = []
    for extent in placement.extents:
        source = sources[extent.file]
        resident = source.resident_share(extent.offset, extent.num_bytes)
        chosen.append((choose(source.facts, resident, refusal, options.num_cpus, options.engine, may_map), resident))
    return chosen


def read_extents(
    placement: Placement, arena: Arena, sources: Mapping[Path, Source], options: ReadOptions
) -> ReadReport:
    """Read the extents of a placement into its arena, or map them there; raises as above."""
    choices = choose_all(placement, sources, options, may_map=True)
    by_engine: dict[Engine, list[int]] = defaultdict(list)
    for i, (choice, _) in enumerate(choices):
        by_engine[choice.engine].append(i)
    started, cpu_started = time.perf_counter(), time.process_time()
    total = sum(extent.num_bytes for extent in placement.extents)
    done, hash_s, meanwhile = 0, 0.0, options.meanwhile
    reports: dict[int, ExtentReport] = {}
    for engine, numbers in by_engine.items():
        extents = [placement.extents[i] for i in numbers]
        begun = time.perf_counter() - started
        if engine.name == "mapped":
            _map(extents, arena, sources, options.verify)
        reading, wanted = start_reading(engine, extents, arena.address, sources, options.verify)
        finish(reading, partial(_tell, options.progress, done, total), meanwhile)
        meanwhile = None
        raise_failure(reading, extents)
        compare(reading.digests, wanted)
        done, hash_s = done + reading.bytes_read, hash_s + reading.hash_seconds
        for i, (begin, end, worker) in zip(numbers, reading.times, strict=True):
            extent, (choice, resident) = placement.extents[i], choices[i]
            filesystem = sources[extent.file].facts.filesystem
            reports[i] = ExtentReport(
                extent.file, extent.num_bytes, filesystem, resident, engine.name, choice.reason, begun + begin,
                begun + end, worker,
            )  # fmt: skip
    if meanwhile is not None:  # nothing was wanted
        meanwhile()
    options.progress(total, total)
    known = sum(r.num_bytes for e in placement.extents for r in e.ranges if r.xxh3 is not None)
    return ReadReport(
        num_bytes=total,
        seconds=max(each.end_s for each in reports.values()) if reports else 0.0,
        cpu_s=time.process_time() - cpu_started,
        hash_s=hash_s,
        verified=known if options.verify else 0,
        extents=tuple(reports[i] for i in range(len(choices))),
        arena_bytes=placement.num_bytes,
    )


def start_reading(
    engine: Engine, extents: Sequence[Extent], address: int, sources: Mapping[Path, Source], verify: bool
) -> tuple[Reading, list[Range]]:
    """A reading of extents into an arena at `address`, under way, and the range that each of its digests is of."""
    files, spans, wanted = [], [], []
    for i, extent in enumerate(extents):
        source = sources[extent.file]
        file = source.direct if engine.name in ("io_uring", "direct") else source.buffered
        assert file is not None, "a direct engine was chosen for a file that cannot be read directly"
        files.append((file, extent.offset, extent.num_bytes, address + extent.at))
        for each in extent.ranges:
            if verify and each.xxh3 is not None:
                spans.append((i, each.offset - extent.offset, each.num_bytes))
                wanted.append(each)
    try:
        reading = Reading(
            files, spans, block=engine.block, piece_bytes=engine.piece_bytes, num_workers=engine.num_workers,
            depth=engine.depth, is_mapped=engine.name == "mapped",
        )  # fmt: skip
    except OSError as error:  # there was a ring a moment ago; limits of locked memory and threads are the host's
        raise ResourceError(f"--engine {engine.name}: {error.strerror}", "--engine buffered") from None
    return reading, wanted


def _map(extents: Sequence[Extent], arena: Arena, sources: Mapping[Path, Source], verify: bool) -> None:
    """Have extents stand in an arena, with the checksums of what lies in them."""
    files = [(sources[e.file].buffered, e.offset, e.num_bytes, e.at) for e in extents]
    digests = [(e.place_of(r), r.num_bytes, r.xxh3) for e in extents for r in e.ranges if verify and r.xxh3 is not None]
    try:
        arena.map_files(files, [str(e.file) for e in extents], digests)
    except OSError as error:  # the host's limit of mappings
        raise ResourceError(f"--engine mapped: {error.strerror}", "--engine buffered") from None


def _tell(progress: Progress, before: int, total: int, read: int) -> None:
    progress(before + read, total)


def finish(reading: Reading, progress: Callable[[int], None], meanwhile: Callable[[], None] | None = None) -> None:
    """Return when the reading is over, and `meanwhile` too; told of its bytes so far. Interrupted, it is cancelled."""
    try:
        if meanwhile is not None:
            meanwhile()
        while not reading.wait(_POLL_S):
            progress(reading.bytes_read)
    finally:
        reading.cancel()


def raise_failure(reading: Reading, extents: Sequence[Extent]) -> None:
    """Say what failed, and of which tensor, if anything did; the reading is over."""
    if reading.failure is None:
        return
    number, offset, error = reading.failure
    extent = extents[number]
    if error == 0:
        raise _ended(extent, offset)
    raise CheckpointError(
        f"{extent.file}: {_name_at(extent, offset)} cannot be read at byte {offset}: {os.strerror(error)}",
        "look at the kernel's log (dmesg) for the storage; copy the model to another place",
    )


def _ended(extent: Extent, at: int) -> CheckpointError:
    return CheckpointError(
        f"{extent.file}: {_name_at(extent, at)} cannot be read: the file ends at byte {at}, "
        f"{extent.offset + extent.num_bytes} was wanted",
        "the copy is incomplete, or something writes to the file: copy it again",
    )


def _name_at(extent: Extent, offset: int) -> str:
    """The tensor that a byte of the file belongs to."""
    inside = [each.name for each in extent.ranges if offset < each.offset + each.num_bytes]
    return f"tensor {(inside or [extent.ranges[-1].name])[0]}"


def compare(digests: Sequence[int], wanted: Sequence[Range]) -> None:
    """Raise CheckpointError for the first range whose digest is another than it should have."""
    for found, each in zip(digests, wanted, strict=True):
        if found != each.xxh3:
            raise CheckpointError(
                f"{each.file}: tensor {each.name} at byte {each.offset} has the checksum {found:016x}, "
                f"{each.xxh3:016x} was written",
                "the file changed since conversion (a bad disk or copy): copy it again or convert again",
            )
