"""What is asked of a host: the device that must work, and how much memory and disk a model takes at the least."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trivet.base.errors import CheckpointError

_WEIGHTS = (".safetensors", ".gguf")


@dataclass(frozen=True)
class Need:
    """None means that it was not said, so nothing is held against it."""

    device: Literal["cpu", "npu"] | None = None  # None: an NPU if there is one, and then it must work
    memory_bytes: int | None = None
    disk_path: str | None = None
    disk_bytes: int | None = None


def need_of(model: Path | None, device: Literal["cpu", "npu"] | None, cache_dir: Path) -> Need:
    """The least that `model`, a folder or a file, takes: its weights once in memory and, unless it is a package, once
    more in the cache. No model needs nothing, but the cache is still looked at.

    Raises CheckpointError if there is no model, or no weights in it.
    """
    if model is None:
        return Need(device=device, disk_path=str(cache_dir))
    if not model.exists():
        raise CheckpointError(f"{model}: does not exist", "name a model's folder or file")
    files = [model] if model.is_file() else sorted(model.iterdir())
    weights = [file.stat().st_size for file in files if file.suffix in _WEIGHTS and file.is_file()]
    if not weights:
        raise CheckpointError(
            f"{model}: holds no weights, which are {' or '.join(_WEIGHTS)} files", "name a model's folder or file"
        )
    is_package = (model / "trivet.json").is_file()
    return Need(device, sum(weights), str(cache_dir), None if is_package else sum(weights))
