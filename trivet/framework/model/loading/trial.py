"""A model loaded once to say what that takes: it is gone again when the report is written."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from trivet.base.errors import CheckpointError
from trivet.base.settings import Settings
from trivet.base.units import KIB, format_bytes
from trivet.driver.devices.null import NullMemory
from trivet.driver.devices.table import open_device
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.graph.binding import BINDINGS
from trivet.framework.graph.profile import one_sequence
from trivet.framework.model.checkpoints.digest import model_name
from trivet.framework.model.loader import load, open_model
from trivet.framework.model.loading.engines import EngineName
from trivet.framework.model.loading.extents import Range, place
from trivet.framework.model.loading.ranks import check_rank, join, read_rank
from trivet.framework.model.loading.read import ReadOptions, ReadReport, choose_all, opened
from trivet.framework.model.loading.report import LoadReport, RankShare
from trivet.framework.model.loading.staging import read_to_device
from trivet.framework.model.loading.storage_limit import recall
from trivet.framework.model.loading.times import LoadTimes
from trivet.framework.model.loading.weights import checkpoint_ranges, package_ranges, read_checkpoint
from trivet.framework.model.manifest import Manifest, is_package, read_manifest
from trivet.framework.model.package import Package

Row = dict[str, Any]


def load_once(model: Path, *, settings: Settings, **options: Any) -> LoadReport:
    """`load` with its options, and one token: what serving would wait for. Raises what `load` raises."""
    cpu_started = time.process_time()
    loaded = load(model, settings=settings, **options)
    with loaded.times.phase("warm-up"):
        loaded.plan.run(one_sequence(1, slot_tokens=loaded.plan.slot_tokens))
    loaded.plan.close()
    return _report(
        loaded.name, loaded.times, loaded.weights, cpu_started, loaded.device.numa_node, len(loaded.device.cpus),
        loaded.package.path, settings,
    )  # fmt: skip


def read_as_stored(
    model: Path, *, settings: Settings, threads: int | None = None, engine: EngineName | None = None, **_: Any
) -> LoadReport:
    """The tensors of a published safetensors folder, read as they are; what only matters to a plan is not looked at.

    Raises CheckpointError for files that are not what they say, ResourceError for what the host has not.
    """
    cpu_started, times = time.process_time(), LoadTimes()
    with times.phase("facts"):
        device = open_device("cpu", read_placement_facts(), threads)
    with times.phase("read"):
        weights = read_checkpoint(model, ReadOptions(len(device.cpus), engine), device.numa_node)
    # Headers are parsed before the first extent is read.
    times.phases = {"facts": times.phases["facts"], "open": times.phases["read"] - weights.report.seconds,
                    "read": weights.report.seconds}  # fmt: skip
    return _report(
        model_name(model), times, weights.report, cpu_started, device.numa_node, len(device.cpus), model, settings
    )


def read_staged(
    model: Path,
    *,
    settings: Settings,
    verify: bool = True,
    threads: int | None = None,
    engine: EngineName | None = None,
    **options: Any,
) -> LoadReport:
    """The weights of a model through the ring of pinned buffers into a pretend device's memory; no plan is bound.

    Raises what `open_model` raises, CheckpointError and ResourceError for what cannot be read or had.
    """
    cpu_started, times = time.process_time(), LoadTimes()
    with times.phase("facts"):
        placed = open_device("cpu", read_placement_facts(), threads)
    with times.phase("open"):
        package = _package(model, settings, times, options)
    ranges = package_ranges(package.path, package.stored)
    with times.phase("read"):
        memory, _, read = read_to_device(ranges, NullMemory, ReadOptions(len(placed.cpus), engine, verify))
        memory.close()
    times.part("read", "copy", read.copy_s or 0.0)
    return _report(
        package.source_name, times, read, cpu_started, placed.numa_node, len(placed.cpus), package.path, settings
    )


def read_as_rank(
    model: Path,
    *,
    rank: int,
    num_ranks: int | None = None,
    meet: str | None = None,
    num_processes: int | None = None,
    settings: Settings,
    verify: bool = True,
    threads: int | None = None,
    engine: EngineName | None = None,
    **options: Any,
) -> LoadReport:
    """What rank `rank` of the model reads; no plan is bound.

    A checkpoint is cut for `num_ranks` first; a package must be, unless that is None. With `meet` (host:port) rank 0
    reads for all what all have, `num_processes` of them, None for as many as the package is cut for. Raises what
    `open_model`, `join` and `read_rank` raise.
    """
    cpu_started, times = time.process_time(), LoadTimes()
    with times.phase("facts"):
        placed = open_device("cpu", read_placement_facts(), threads)
    with times.phase("open"):
        path, manifest = _cut(model, num_ranks, settings, times, options)
    reading = ReadOptions(len(placed.cpus), engine, verify)
    check_rank(path, manifest, rank, num_processes)
    with ExitStack() as left:
        group = None
        if meet is not None:
            with times.phase("meet"):
                group = left.enter_context(closing(join(rank, num_processes or manifest.num_ranks, meet)))
        read = read_rank(path, manifest, rank, reading, times, group=group, node=placed.numa_node).report
    report = _report(manifest.source_name, times, read, cpu_started, placed.numa_node, len(placed.cpus), path, settings)
    whole = sum(piece.bytes for pieces in manifest.tensors.values() for piece in pieces)
    return replace(report, share=RankShare(rank, manifest.num_ranks if group is None else group.num_ranks, whole))


def explain(
    model: Path,
    *,
    as_stored: bool,
    rank: int | None = None,
    num_ranks: int | None = None,
    settings: Settings,
    threads: int | None = None,
    engine: EngineName | None = None,
    **options: Any,
) -> list[Row]:
    """How each file would be read now and why, one row for each file and way; no weight is read.

    `rank` and `num_ranks` are as `read_as_rank` has them.
    """
    device = open_device("cpu", read_placement_facts(), threads)
    rows: dict[tuple[Path, str, str], Row] = {}
    if rank is not None:
        path, manifest = _cut(model, num_ranks, settings, LoadTimes(), options)
        check_rank(path, manifest, rank)
        ranges = package_ranges(path, manifest.of_rank(rank))
    else:
        ranges = _ranges(model, as_stored, settings, options)
    placement, may_map = place(ranges), not BINDINGS[options.get("device") or "cpu"].has_own_memory
    with opened(placement) as sources:
        chosen = choose_all(placement, sources, ReadOptions(len(device.cpus), engine), may_map)
        for extent, (choice, resident) in zip(placement.extents, chosen, strict=True):
            key = (extent.file, choice.engine.name, choice.reason)
            facts = sources[extent.file].facts
            row = rows.setdefault(
                key,
                {"file": str(extent.file), "filesystem": facts.filesystem, "bytes": 0, "resident_bytes": 0.0,
                 "engine": choice.engine.name, "reason": choice.reason, "workers": choice.engine.num_workers,
                 "depth": choice.engine.depth, "read_bytes": choice.engine.piece_bytes},
            )  # fmt: skip
            row["bytes"] += extent.num_bytes
            row["resident_bytes"] = None if resident is None else row["resident_bytes"] + resident * extent.num_bytes
    return list(rows.values())


def table(rows: Sequence[Row]) -> str:
    """The rows of `explain` as people read them."""
    lines = []
    for row in rows:
        flight = f" of {row['depth']} reads in flight" if row["depth"] else ""
        how = f"{row['workers']} workers{flight}, {format_bytes(row['read_bytes'])} each"
        kind = row["filesystem"] or "an unknown filesystem"
        lines.append(f"{row['file']} on {kind}: {format_bytes(row['bytes'])} by {row['engine']} ({how})")
        lines.append(f"  → {row['reason']}")
    return "\n".join(lines)


def _ranges(model: Path, as_stored: bool, settings: Settings, options: dict[str, Any]) -> list[Range]:
    if as_stored:
        return checkpoint_ranges(model)[0]
    package = _package(model, settings, LoadTimes(), options)
    return package_ranges(package.path, package.stored)


def _cut(
    model: Path, num_ranks: int | None, settings: Settings, times: LoadTimes, options: dict[str, Any]
) -> tuple[Path, Manifest]:
    """The package at `model`, or that of the checkpoint there cut for `num_ranks`, and what it says of itself.

    No shard is looked for: a rank's host may have that rank's alone.
    """
    path = model
    if not is_package(model):
        path = _package(model, settings, times, {**options, "num_ranks": num_ranks or 1, "rank": 0}).path
    manifest = read_manifest(path)
    if num_ranks not in (None, manifest.num_ranks):
        raise CheckpointError(
            f"{model} is a package for {manifest.num_ranks} ranks, --tensor-parallel {num_ranks} was asked for",
            f"convert its checkpoint again with --tensor-parallel {num_ranks}",
        )
    return path, manifest


def _package(model: Path, settings: Settings, times: LoadTimes, options: dict[str, Any]) -> Package:
    """The model's package, made if it must be; of the options of `load`, those that say which."""
    which = {
        name: options[name]
        for name in ("device", "dtype", "weights", "progress", "num_ranks", "rank")
        if name in options
    }
    return open_model(model, verify=False, settings=settings, times=times, **which)


def _report(
    name: str, times: LoadTimes, read: ReadReport, cpu_started: float, node: int | None, num_cpus: int, path: Path,
    settings: Settings,
) -> LoadReport:  # fmt: skip
    return LoadReport(
        model=name,
        phases=dict(times.phases),
        read=read,
        cpu_s=time.process_time() - cpu_started,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
        numa_node=node,
        num_cpus=num_cpus,
        storage=recall(path, settings.cache_dir),
    )
