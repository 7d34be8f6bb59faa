"""Packages made once: where the package of a checkpoint is kept, and how it is found again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from trivet import __version__
from trivet.framework.model.checkpoints.checkpoint import Checkpoint
from trivet.framework.model.checkpoints.digest import source_digest
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.framework.model.manifest import is_package
from trivet.framework.model.package import Package, open_package

Build = Callable[[Checkpoint, Path], Package]  # converts a checkpoint to a package at the path


def packaged(path: str | Path, cache_dir: Path, variant: str, build: Build, *, verify: bool = True) -> Package:
    """The package at `path` as it is; for a checkpoint, the one made of it before, or else made now by `build`.

    `variant` says what of the conversion's settings the package depends on, such as "bfloat16-level3". What an
    interrupted conversion left in the cache goes when the next one begins.
    """
    path = Path(path)
    if is_package(path):
        return open_package(path, verify=verify)
    if path.exists():
        destination = cache_dir / "packages" / package_name(path, variant)
        if is_package(destination):
            return open_package(destination, verify=verify)
    checkpoint = open_checkpoint(path)
    return build(checkpoint, cache_dir / "packages" / package_name(path, variant))


def package_name(path: Path, variant: str) -> str:
    """A folder name that a person recognises and that differs where the package would."""
    model = re.sub(r"[^\w.-]+", "-", path.resolve().name.removesuffix(".gguf"))
    # Another version of trivet may make another graph of the same checkpoint.
    return f"{model}-{source_digest(path)[:16]}-{variant}-{__version__}"
