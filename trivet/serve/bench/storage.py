"""What the storage below a folder can do at best: a file of its own read cold, in every way a load may read.

The best of them is the limit that a load is held against; `fio`, where it is installed, says whether it is one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import NamedTemporaryFile

import numpy as np

from trivet._native import ring_refusal
from trivet.base.errors import ResourceError
from trivet.base.units import MIB, format_bytes
from trivet.framework.memory.arena import Arena
from trivet.framework.model.loading.engines import ENGINES, EngineName, is_in_memory
from trivet.framework.model.loading.extents import Range, place
from trivet.framework.model.loading.read import ReadOptions, opened, read_extents
from trivet.framework.model.loading.storage_limit import StorageLimit
from trivet.serve.bench.fio import has_huge_pages, read_by_fio
from trivet.serve.bench.load import drop_from_page_cache

_RANGE_BYTES = 64 * MIB


@dataclass(frozen=True)
class StorageSpeed:
    """How fast one way of reading was; `refusal` says why it was not tried."""

    way: str  # an engine, or fio
    bytes_per_s: tuple[float, ...]  # of each repeat
    cpu_s: float | None = None  # of all repeats together
    refusal: str | None = None

    @property
    def median(self) -> float:
        return median(self.bytes_per_s) if self.bytes_per_s else 0.0


def measure_storage(
    folder: Path, num_bytes: int, *, threads: int, repeats: int, tell: Callable[[str], None]
) -> list[StorageSpeed]:
    """Each engine, and fio where it is, reading a file of `num_bytes` in the folder past this system's page cache.

    The ways take turns, so that what else the machine does meets all of them. The file is gone afterwards. Raises
    ResourceError when it cannot be written, or when there is no storage: the folder lies in memory.
    """
    with _scratch(folder, num_bytes, tell) as file, Arena(num_bytes + 2 * MIB, "storage test") as arena:
        arena.view(0, (arena.num_bytes,), np.uint8)[:] = 1  # pages from the host are not the storage's time
        refusals = _refusals(file)
        samples: dict[str, list[float]] = {way: [] for way, refusal in refusals.items() if refusal is None}
        cpu_s = dict.fromkeys(samples, 0.0)
        for i in range(repeats):
            tell(f"reading, {i + 1} of {repeats}")
            for way, taken in samples.items():
                drop_from_page_cache([file])
                if way == "fio":
                    num_read, seconds = read_by_fio([file], use_huge_pages=has_huge_pages())
                    taken.append(num_read / seconds)
                    continue
                speed, seconds = _by_engine(file, arena, threads, next(name for name in ENGINES if name == way))
                taken.append(speed)
                cpu_s[way] += seconds
    return [
        StorageSpeed(way, tuple(samples.get(way, ())), None if way == "fio" else cpu_s.get(way), refusal)
        for way, refusal in refusals.items()
    ]


def limit_of(speeds: list[StorageSpeed]) -> StorageLimit:
    """The best of the engines: what a load could reach."""
    best = max((each for each in speeds if each.way != "fio"), key=lambda each: each.median)
    return StorageLimit(best.median, best.way, datetime.now(UTC).isoformat(timespec="seconds"))


def table(speeds: list[StorageSpeed]) -> str:
    """The speeds as people read them."""
    lines = []
    for each in speeds:
        if each.refusal is not None:
            lines.append(f"{each.way:<9}  not tried: {each.refusal}")
            continue
        spread = f"{min(each.bytes_per_s) / 1e9:.2f} to {max(each.bytes_per_s) / 1e9:.2f}"
        cpu = "" if each.cpu_s is None else f", {each.cpu_s / len(each.bytes_per_s):.2f} CPU-seconds"
        lines.append(f"{each.way:<9}  {each.median / 1e9:6.2f} GB/s  ({spread}){cpu}")
    return "\n".join(lines)


@contextmanager
def _scratch(folder: Path, num_bytes: int, tell: Callable[[str], None]) -> Iterator[Path]:
    """A file of random bytes, on the disk and not in the page cache."""
    if not folder.is_dir():
        raise ResourceError(f"{folder} is not a folder", "name a folder on the storage to measure")
    if shutil.disk_usage(folder).free < 2 * num_bytes:
        raise ResourceError(f"{folder}: less than {format_bytes(2 * num_bytes)} is free", "name a smaller --size")
    try:
        with NamedTemporaryFile(dir=folder, prefix=".trivet-storage-") as file:
            tell(f"writing {format_bytes(num_bytes)} to {folder}")
            random = np.random.default_rng(0)
            for start in range(0, num_bytes, _RANGE_BYTES):
                file.write(random.bytes(min(_RANGE_BYTES, num_bytes - start)))
            file.flush()
            os.fsync(file.fileno())
            yield Path(file.name)
    except OSError as error:
        raise ResourceError(f"{folder}: cannot be measured: {error.strerror}", "name another folder") from None


def _refusals(file: Path) -> dict[str, str | None]:
    """Every way, and why it cannot be tried."""
    placement = place([Range("", file, 0, 1)])
    with opened(placement) as sources:
        facts = sources[file].facts
    if is_in_memory(facts):
        raise ResourceError(f"{file.parent} is {facts.filesystem}: it lies in memory", "name a folder on storage")
    direct = facts.direct_refusal
    return {
        "io_uring": direct or ring_refusal() or None,
        "direct": direct,
        "buffered": None,
        "fio": None if shutil.which("fio") else "it is not installed",
    }


def _by_engine(file: Path, arena: Arena, threads: int, engine: EngineName) -> tuple[float, float]:
    """Bytes per second, and CPU-seconds."""
    size = file.stat().st_size
    cuts = range(0, size, _RANGE_BYTES)
    placement = place([Range(f"{start}", file, start, min(_RANGE_BYTES, size - start)) for start in cuts])
    with opened(placement) as sources:
        report = read_extents(placement, arena, sources, ReadOptions(threads, engine, verify=False))
    return report.bytes_per_s, report.cpu_s
