"""Packages made once: where the package of a checkpoint is kept, and how it is found again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from trivet import __version__
from trivet.framework.model.checkpoints.digest import check_exists, model_name, source_digest
from trivet.framework.model.manifest import FORMAT, is_package
from trivet.framework.model.package import Package, open_package
from trivet.framework.model.work_folder import remove_stale

Build = Callable[[Path, Path], Package]  # converts the checkpoint at the first path to a package at the second


def packaged(
    path: str | Path, cache_dir: Path, variant: str, build: Build, *, verify: bool = True, rank: int | None = None
) -> Package:
    """The package at `path` as it is; for a checkpoint, the one made of it before, or else made now by `build`.

    `rank` is as `open_package` has it. `variant` says what of the conversion's settings the package depends on, such as
    "bfloat16-level3". What an interrupted conversion left in the cache is continued by its own next call, and goes when
    that of another begins.
    """
    path = Path(path)
    check_exists(path)
    if is_package(path):
        return open_package(path, verify=verify, rank=rank)
    destination = cache_dir / "packages" / package_name(path, variant)
    if is_package(destination):
        return open_package(destination, verify=verify, rank=rank)
    remove_stale(destination.parent, besides=destination)
    return build(path, destination)


def made_before(path: Path, cache_dir: Path) -> Path | None:
    """A package of the checkpoint at `path` that is in the cache, of whatever variant; None if there is none."""
    found = (cache_dir / "packages").glob(package_name(path, "*"))
    return next((folder for folder in sorted(found) if is_package(folder)), None)


def package_name(path: Path, variant: str) -> str:
    """A folder name that a person recognises and that differs where the package would."""
    model = re.sub(r"[^\w.-]+", "-", model_name(path))
    # Another version of trivet may make another graph of the same checkpoint, or another format of package.
    return f"{model}-{source_digest(path)[:16]}-{variant}-{__version__}.{FORMAT}"
