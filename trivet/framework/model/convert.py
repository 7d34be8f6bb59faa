"""Checkpoint to package in named steps, each recorded when it is complete, so that a killed conversion continues.

The package appears at its destination when all of it is on disk and verified, or not at all. Memory stays at a few
blocks of rows, whatever the model's size. The checkpoint is only read.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trivet.base.errors import CheckpointError, ResourceError, TrivetError
from trivet.base.units import format_bytes
from trivet.framework.model.journal import Journal
from trivet.framework.model.manifest import is_package, layout_fingerprint, read_manifest, write_manifest
from trivet.framework.model.package import Package, map_package, open_package
from trivet.framework.model.steps import STEPS, Conversion, Progress, Step, Wanted
from trivet.framework.model.verification import Verification
from trivet.framework.model.work_folder import publish, work_folder, work_path

_JOURNAL = "journal"
_PACKAGE = "package"


@dataclass(frozen=True)
class StepReport:
    step: str
    made: str
    seconds: float


@dataclass(frozen=True)
class Converted:
    """A package with how it came to be; no steps when it was there already."""

    package: Package
    steps: tuple[StepReport, ...] = ()
    verification: Verification | None = None


def convert(
    source: str | Path,
    destination: Path,
    wanted: Wanted | None = None,
    *,
    replace: bool = False,
    progress: Progress | None = None,
    waiting: Callable[[Path], None] | None = None,
) -> Converted:
    """Make the package of the checkpoint at `source` and open it; reuse what is at `destination` if it is the same.

    `replace` allows a different package to be overwritten. `waiting` is told of the folder that another conversion to
    this destination holds, before waiting for its end.

    Raises CheckpointError when checkpoint and graph do not fit, the checkpoint changed meanwhile, something else is at
    `destination`, or what was written is not what is read again; ConfigError for its configuration; GraphError for a
    law; ResourceError when storage is full or fails. After a ResourceError or an interrupt, what is complete stays in
    `work_path(destination)` for the next call.
    """
    source, wanted = Path(source), wanted or Wanted()
    if is_package(source):
        raise CheckpointError(
            f"{source} is a package already", f"serve it: trivet up {source}; or convert what it was made of once more"
        )
    destination = destination.absolute()  # "." has no name, and cannot be renamed
    conversion = Conversion(
        source, wanted, work_path(destination) / _PACKAGE, progress or (lambda doing, done, total: None)
    )
    with _storage_errors(destination):
        reports, made = _run(conversion, [step for step in STEPS if not step.writes])
        present = _present(conversion, destination, replace)
        if present is None:
            _check_space(conversion, destination)
        elif not work_path(destination).exists():
            return Converted(present)
        with work_folder(destination, waiting or (lambda path: None)) as work, _kept_if_useful(work):
            present = _present(conversion, destination, replace)  # as it is now that nobody else is making it
            if present is not None:
                shutil.rmtree(work)  # what another has left that was killed when all was done
                return Converted(present)
            conversion.folder.mkdir(exist_ok=True)
            with Journal(work / _JOURNAL) as conversion.journal:
                for name, digest in made.items():
                    conversion.journal.record(name, digest)
                written, made = _run(conversion, [step for step in STEPS if step.writes])
            write_manifest(conversion.manifest, conversion.folder)
            publish(work, conversion.folder, destination)
    package = map_package(destination, conversion.manifest, verify=False, rank=0)  # every byte was just read again
    return Converted(package, (*reports, *written), conversion.verification)


def _run(conversion: Conversion, steps: list[Step]) -> tuple[list[StepReport], dict[str, str]]:
    reports, made = [], {}
    for step in steps:
        start = time.perf_counter()
        sentence, made[step.name] = step.run(conversion)
        reports.append(StepReport(step.name, sentence, time.perf_counter() - start))
        if step.writes:
            conversion.journal.record(step.name, made[step.name])
    return reports, made


def _present(conversion: Conversion, destination: Path, replace: bool) -> Package | None:
    """The same package, if that is what is at `destination`; None if nothing is there, or what may be replaced."""
    if not destination.exists():
        return None
    if not is_package(destination):
        raise CheckpointError(f"{destination} exists and is not a package", "choose a path where nothing is")
    if replace:
        return None
    there, wanted = read_manifest(destination), conversion.wanted
    asked = (conversion.digest, wanted.dtype, wanted.level, layout_fingerprint(conversion.graph, wanted.num_ranks))
    if (there.source_digest, there.dtype, there.level, layout_fingerprint(there.graph, there.num_ranks)) == asked:
        return open_package(destination, rank=0)
    raise CheckpointError(
        f"{destination} is another package: {there.source_name} in {there.dtype} at level {there.level}",
        "choose another path, or replace it with --force",
    )


def _check_space(conversion: Conversion, destination: Path) -> None:
    """Space for what is not there yet: an earlier conversion's shards are written over, or kept."""
    there = sum(file.stat().st_size for file in conversion.folder.glob("*.safetensors"))
    needed = sum(shard.num_bytes for shard in conversion.shards) - there
    place = next(parent for parent in destination.parents if parent.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise ResourceError(
            f"{place}: {format_bytes(free)} free, the package needs {format_bytes(needed)}",
            "free some space, or name another place: an output path, or TRIVET_CACHE",
        )


@contextmanager
def _kept_if_useful(work: Path) -> Iterator[None]:
    """On an error, keep what a further call can use: whole shards, if the checkpoint was not at fault."""
    try:
        yield
    except BaseException as error:
        is_ours = isinstance(error, TrivetError) and not isinstance(error, ResourceError)
        if is_ours or not _whole_shards(work):
            shutil.rmtree(work, ignore_errors=True)
        for file in (work / _PACKAGE).glob("*"):
            if file.name not in _whole_shards(work):
                file.unlink()
        raise


def _whole_shards(work: Path) -> list[str]:
    """The shards that the work folder's journal has as complete."""
    if not (work / _JOURNAL).exists():
        return []
    with Journal(work / _JOURNAL) as journal:
        return [name for name in journal.names if name.endswith(".safetensors")]


@contextmanager
def _storage_errors(destination: Path) -> Iterator[None]:
    """What storage says while it is read and written, as ours."""
    try:
        yield
    except OSError as error:
        place = error.filename or destination
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(
                f"{place}: the disk is full ({error.strerror})",
                "free some space and run the same command again: it goes on with what is complete",
            ) from None
        raise ResourceError(
            f"{place}: {error.strerror}", "mend it and run the same command again: it goes on with what is complete"
        ) from None
