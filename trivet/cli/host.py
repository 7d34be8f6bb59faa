"""Which host a command looks at, and what is asked of it: this one, a captured one, or one in a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import click

from trivet.base.settings import read_settings
from trivet.driver.bundle import opened_bundle, write_bundle
from trivet.driver.need import Need, need_of

Device = Literal["cpu", "npu"]


@dataclass(frozen=True)
class Examined:
    root: Path
    need: Need
    paths: tuple[str, ...]  # whose filesystems are asked for


@contextmanager
def host(root: Path, source: Path | None, model: Path | None, device: Device | None) -> Iterator[Examined]:
    """The host under `root`, or in the bundle `source`, which is gone afterwards.

    A bundle keeps what its host was held against, and `model` and `device` change that.
    """
    asked = _asked(root, model, device)
    if source is None:
        yield asked
        return
    if root != Path("/"):
        raise click.UsageError(f"--root {root} and --from {source} are two hosts: leave out one")
    with opened_bundle(source) as (place, kept):
        need = kept.need
        if model is not None:
            need = replace(asked.need, device=need.device, disk_path=need.disk_path)
        yield Examined(place, replace(need, device=device or need.device), kept.paths)


def bundled(bundle: Path, root: Path, model: Path | None, device: Device | None, python: str | None) -> Path:
    """Writes the host as a bundle, says so on stderr, and returns where it is."""
    asked = _asked(root, model, device)
    written = write_bundle(bundle, asked.root, asked.need, asked.paths, python)
    hidden = ", ".join(f"{count} {kind}" for kind, count in written.hidden.items()) or "nothing"
    click.echo(
        f"bundle: {bundle}, {written.num_files} files in {written.num_bytes} bytes; stand-ins for {hidden}\n"
        f"  → tar --zstd -xOf {bundle} | less  # look before you send it",
        err=True,
    )
    return bundle


def _asked(root: Path, model: Path | None, device: Device | None) -> Examined:
    need = need_of(model, device, read_settings().cache_dir.absolute())
    return Examined(root.resolve(), need, tuple(path for path in (need.disk_path, need.model_path) if path is not None))
