"""What is asked of a host: the device that must work, and how much memory and disk a model takes at the least."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trivet.base.errors import CheckpointError
from trivet.driver.model_shape import ModelShape, read_model_shape
from trivet.driver.peers import PeerHost

_INDEX = "model.safetensors.index.json"
_WEIGHTS = (".safetensors", ".gguf")


@dataclass(frozen=True)
class Need:
    """None means that it was not said, so nothing is held against it."""

    device: Literal["cpu", "npu"] | None = None  # None: an NPU if there is one, and then it must work
    memory_bytes: int | None = None
    disk_path: str | None = None
    disk_bytes: int | None = None
    model_path: str | None = None
    missing_shards: tuple[str, ...] = ()  # that the model's index names and its folder has not
    shape: ModelShape | None = None
    tensor_parallel: int | None = None  # over how many NPUs each layer is to be split
    peers: tuple[PeerHost, ...] = ()  # the other hosts of the job


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
    return Need(
        device, sum(weights), str(cache_dir), None if is_package else sum(weights), str(model.absolute()),
        _missing_shards(model), read_model_shape(model),
    )  # fmt: skip


def _missing_shards(model: Path) -> tuple[str, ...]:
    try:
        index = json.loads((model / _INDEX).read_text(encoding="utf-8"))
        shards = {str(shard) for shard in index["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()  # there is none, or it is no index: whoever loads the model says so
    return tuple(sorted(shard for shard in shards if not (model / shard).is_file()))
