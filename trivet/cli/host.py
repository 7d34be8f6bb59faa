"""Which host a command looks at, and what is asked of it: this one, a captured one, or one in a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import click

from trivet.base.settings import Language, read_settings
from trivet.driver.bundle import opened_bundle, write_bundle
from trivet.driver.need import Need, need_of
from trivet.driver.peers import read_peer
from trivet.driver.phrases import say

Device = Literal["cpu", "npu"]


@dataclass(frozen=True)
class Job:
    """How a model is to be spread."""

    tensor_parallel: int | None = None
    peers: tuple[Path, ...] = ()  # reports of the other hosts


@dataclass(frozen=True)
class Examined:
    root: Path
    need: Need
    paths: tuple[str, ...]  # whose filesystems are asked for


@contextmanager
def host(
    root: Path, source: Path | None, model: Path | None, device: Device | None, job: Job = Job()
) -> Iterator[Examined]:
    """The host under `root`, or in the bundle `source`, which is gone afterwards.

    A bundle keeps what its host was held against, and `model`, `device` and `job` change that.
    """
    asked = _asked(root, model, device, job)
    if source is None:
        yield asked
        return
    if root != Path("/"):
        raise click.UsageError(f"--root {root} and --from {source} are two hosts: leave out one")
    with opened_bundle(source) as (place, kept):
        need = kept.need
        if model is not None:
            need = replace(asked.need, device=need.device, disk_path=need.disk_path)
        ways, peers = job.tensor_parallel or need.tensor_parallel, asked.need.peers or need.peers
        need = replace(need, device=device or need.device, tensor_parallel=ways, peers=peers)
        yield Examined(place, need, kept.paths)


def bundled(
    bundle: Path,
    root: Path,
    model: Path | None,
    device: Device | None,
    python: str | None,
    job: Job,
    language: Language,
) -> Path:
    """Writes the host as a bundle, says so on stderr, and returns where it is."""
    asked = _asked(root, model, device, job)
    written = write_bundle(bundle, asked.root, asked.need, asked.paths, python)
    speak = partial(say, language)
    hidden = ", ".join(f"{count} {speak(kind)}" for kind, count in written.hidden.items()) or speak("nothing")
    values = {"bundle": bundle, "files": written.num_files, "bytes": written.num_bytes, "hidden": hidden}
    click.echo(speak("bundle: {bundle}, {files} files in {bytes} bytes; stand-ins for {hidden}", values), err=True)
    click.echo("  → " + speak("tar --zstd -xOf {bundle} | less  # look before you send it", values), err=True)
    return bundle


def with_job(need: Need, job: Job) -> Need:
    return replace(need, tensor_parallel=job.tensor_parallel, peers=tuple(map(read_peer, job.peers)))


def _asked(root: Path, model: Path | None, device: Device | None, job: Job) -> Examined:
    need = with_job(need_of(model, device, read_settings().cache_dir.absolute()), job)
    return Examined(root.resolve(), need, tuple(path for path in (need.disk_path, need.model_path) if path is not None))
