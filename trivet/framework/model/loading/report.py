"""What a load took and what held it up: facts in a value, judged by a pure function, told as text or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trivet.base.units import format_bytes, format_seconds
from trivet.framework.memory.arena import HUGE_PAGE_BYTES
from trivet.framework.model.loading.read import ReadReport
from trivet.framework.model.loading.storage_limit import StorageLimit

# Nearer to a limit than this, the limit is what held it up.
_AT_LIMIT = 0.8


@dataclass(frozen=True)
class RankShare:
    """Whose load it was, of several that load one model."""

    rank: int
    num_ranks: int
    model_bytes: int  # of the whole package, for all ranks


@dataclass(frozen=True)
class LoadReport:
    """A load from its first phase to its last. None is unknown."""

    model: str
    phases: Mapping[str, float]  # seconds of each, in order
    read: ReadReport
    cpu_s: float  # of the whole process from the first phase on
    peak_rss_bytes: int  # of the process
    numa_node: int | None  # the weights were placed on; None: no one node is best
    num_cpus: int
    storage: StorageLimit | None
    share: RankShare | None = None  # None: all of the model, for one process

    @property
    def total_s(self) -> float:
        return sum(self.phases.values())

    @property
    def share_of_storage(self) -> float | None:
        """Of the storage's best, what was reached; None when most bytes came from memory or no limit was measured."""
        if self.storage is None or _is_warm(self.read):
            return None
        return self.read.bytes_per_s / self.storage.bytes_per_s


def bottleneck(report: LoadReport) -> tuple[str, str]:
    """What took the most of a load, in a sentence, and what would help, in another."""
    longest = max(report.phases, key=lambda name: report.phases[name])
    if longest == "transform":
        return "converting the checkpoint", "convert it once and keep the package: trivet convert MODEL PACKAGE"
    if longest == "meet":
        return "waiting for the other ranks to start", "start all at once"
    if longest == "broadcast":
        if report.read.received_bytes:
            return "what rank 0 sent", "see what rank 0 waited for: its own report"
        return "reading for all ranks and sending", "each rank reading for itself, where the storage has more to give"
    if longest == "copy":
        return "copies to the device", "pinned buffers on the NUMA node of the device: trivet doctor"
    if longest != "read":
        return f"{longest}, not reading", "nothing about storage; a package opens faster than a checkpoint"
    read, share = report.read, report.share_of_storage
    if _is_warm(read):
        if read.cpu_s > _AT_LIMIT * read.seconds * report.num_cpus:
            work = "hashing" if read.mapped_bytes else "copying and hashing"
            return f"{work} by the CPUs: the files were in the page cache", "more --threads"
        return "memory: the files were in the page cache", "nothing: storage was not waited for"
    if share is not None and share >= _AT_LIMIT:
        return f"the storage: {share:.0%} of its best", "faster storage, or enough memory to keep the files cached"
    if read.hash_s > _AT_LIMIT * read.seconds * report.num_cpus:
        return "comparing checksums", "more --threads, or --no-verify"
    if share is not None:
        help_of = "look for others that read from it now, then measure it again: trivet bench storage"
        return f"the storage at {share:.0%} of its best: something else was using it or the CPUs", help_of
    return "the storage", "measure what it can do: trivet bench storage"


def to_json(report: LoadReport) -> dict[str, Any]:
    what, helps = bottleneck(report)
    read = asdict(report.read)
    read["extents"] = [{**each, "file": str(each["file"])} for each in read["extents"]]
    return {
        **asdict(report),
        "read": {**read, "bytes_per_s": report.read.bytes_per_s, "resident": report.read.resident},
        "total_s": report.total_s,
        "share_of_storage": report.share_of_storage,
        "bottleneck": {"what": what, "help": helps},
    }


def text(report: LoadReport) -> str:
    """The report as people read it, without a trailing newline."""
    read, (what, helps) = report.read, bottleneck(report)
    width = max(len(name) for name in report.phases)
    in_all = format_bytes(read.num_bytes + read.received_bytes)
    lines = [f"{report.model}: {in_all} in {format_seconds(report.total_s)}", ""]
    lines += [f"  {name:<{width}}  {format_seconds(seconds):>8}" for name, seconds in report.phases.items()]
    lines += ["", *_whose(report)]
    if read.num_bytes:
        lines += [f"read at {read.bytes_per_s / 1e9:.2f} GB/s{_of_storage(report)}; {explain_read(read)}"]
    checked = (
        f"{format_bytes(read.verified)} compared with their checksums" if read.verified else "no checksum compared"
    )
    lines += [f"{checked}: {format_seconds(read.hash_s)} of hashing"]
    lines += [
        f"{report.cpu_s:.2f} CPU-seconds, {read.cpu_s:.2f} of them reading; "
        f"peak memory {format_bytes(report.peak_rss_bytes)}"
    ]
    lines += [f"weights in one arena of {format_bytes(read.arena_bytes)}, {_memory(report)}"]
    if read.mapped_bytes:
        lines += [f"the page cache's own pages stood for {format_bytes(read.mapped_bytes)} of it when they were read"]
    lines += [f"bottleneck: {what}", f"  → {helps}"]
    return "\n".join(lines)


def _whose(report: LoadReport) -> list[str]:
    share, received = report.share, report.read.received_bytes
    if share is None:
        return []
    own = format_bytes(report.read.num_bytes)
    lines = [f"rank {share.rank} of {share.num_ranks}: read {own} of a package of {format_bytes(share.model_bytes)}"]
    return lines + ([f"{format_bytes(received)} came from rank 0"] if received else [])


def explain_read(read: ReadReport) -> str:
    """How many bytes each engine read and why, in one line."""
    ways: dict[tuple[str, str], int] = {}
    for each in read.extents:
        key = (each.engine, each.reason)
        ways[key] = ways.get(key, 0) + each.num_bytes
    return ", ".join(f"{format_bytes(size)} by {engine} ({reason})" for (engine, reason), size in ways.items())


def _is_warm(read: ReadReport) -> bool:
    """Did most bytes come from memory?"""
    from_memory = sum(each.num_bytes for each in read.extents if (each.resident or 0.0) >= 0.5)
    return from_memory * 2 > read.num_bytes


def _of_storage(report: LoadReport) -> str:
    if report.share_of_storage is None or report.storage is None:
        return "" if report.storage or _is_warm(report.read) else " (of an unknown limit: trivet bench storage)"
    return f", {report.share_of_storage:.0%} of the {report.storage.bytes_per_s / 1e9:.2f} GB/s the storage can do"


def _memory(report: LoadReport) -> str:
    node = "" if report.numa_node is None else f", from NUMA node {report.numa_node}"
    if report.read.copy_s is not None:
        return f"in the device's memory, {format_seconds(report.read.copy_s)} of waiting for copies{node}"
    if report.read.huge_bytes is None:
        return f"whether on huge pages is unknown{node}"
    whole = report.read.arena_bytes // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if whole == 0:
        return f"too small for huge pages{node}"
    share = min(1.0, report.read.huge_bytes / whole)
    granted = f"{share:.0%} on huge pages"
    if share < _AT_LIMIT:
        granted += " by now" if report.read.mapped_bytes else " (the kernel granted no more: see trivet doctor)"
    return granted + node
