"""What a package says of itself: trivet.json. The one place that knows its keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import xxhash

from trivet import __version__
from trivet.base.dtypes import DTYPES, DType, item_bytes
from trivet.base.errors import CheckpointError, ConfigError, GraphError
from trivet.framework.graph import ir
from trivet.framework.graph.ir import Graph
from trivet.framework.model import config as configs
from trivet.framework.model.config import ModelConfig
from trivet.framework.model.json_file import read_json, write_json
from trivet.operators.panels import PANEL_OUTPUTS, pack_panels

FORMAT = 1
FILE = "trivet.json"


@dataclass(frozen=True)
class StoredWeight:
    """A weight in its shard: `offset` in bytes from the start of the file, `shape` as it is stored."""

    shard: str
    offset: int
    bytes: int
    dtype: DType
    shape: tuple[int, ...]
    xxh3: str  # XXH3-64 of the bytes, in hexadecimal


@dataclass(frozen=True)
class Manifest:
    config: ModelConfig
    dtype: DType  # of weights and activations, where the graph does not say otherwise
    level: int  # of the passes the graph went through
    graph: Graph
    source_name: str
    source_digest: str
    shards: Mapping[str, int]  # file name → bytes
    tensors: Mapping[str, StoredWeight]  # in the order in which they lie


def is_package(folder: Path) -> bool:
    return (folder / FILE).is_file()


def write_manifest(manifest: Manifest, folder: Path) -> None:
    write_json(
        folder / FILE,
        {
            "format": FORMAT,
            "trivet": __version__,
            "config": configs.to_json(manifest.config),
            "dtype": manifest.dtype,
            "level": manifest.level,
            "source": {"name": manifest.source_name, "digest": manifest.source_digest},
            "fingerprint": layout_fingerprint(manifest.graph),
            "shards": [{"file": file, "bytes": size} for file, size in manifest.shards.items()],
            "tensors": {name: asdict(tensor) for name, tensor in manifest.tensors.items()},
            "graph": ir.to_json(manifest.graph),
        },
    )


def read_manifest(folder: Path) -> Manifest:
    """Raises CheckpointError when the package is newer, laid out otherwise, or its manifest contradicts itself."""
    path = folder / FILE
    document = read_json(path)
    version = document.get("format")
    if not isinstance(version, int) or version < 1:
        raise CheckpointError(f"{path} has no format number", "convert the model again")
    if version > FORMAT:
        raise CheckpointError(
            f"{path}: package format {version} is newer than this trivet ({FORMAT})",
            "upgrade trivet or convert the model again",
        )
    try:
        manifest = _from_json(document)
        _check(manifest)
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError, ConfigError, GraphError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r}", "convert the model again") from None
    if document.get("fingerprint") != layout_fingerprint(manifest.graph):
        raise CheckpointError(
            f"{path}: the weights are laid out as another version of trivet ({document.get('trivet')}) wants them",
            "convert the model again",
        )
    return manifest


def layout_fingerprint(graph: Graph) -> str:
    """XXH3-64 of how the bytes of every weight lie: equal fingerprints can be exchanged without converting."""
    layout: list[object] = [
        [name, list(recipe.stored_shape), recipe.dtype, recipe.layout] for name, recipe in graph.weights.items()
    ]
    panels = [pack_panels(np.arange(PANEL_OUTPUTS, dtype=dtype)[:, None]).ravel().tolist() for dtype in ("u2", "f4")]
    return str(xxhash.xxh3_64_hexdigest(json.dumps([layout, panels]).encode()))


def _from_json(document: Mapping[str, Any]) -> Manifest:
    return Manifest(
        config=configs.from_json(document["config"]),
        dtype=document["dtype"],
        level=document["level"],
        graph=ir.from_json(document["graph"]),
        source_name=document["source"]["name"],
        source_digest=document["source"]["digest"],
        shards={shard["file"]: shard["bytes"] for shard in document["shards"]},
        tensors={
            name: StoredWeight(**{**tensor, "shape": tuple(tensor["shape"])})
            for name, tensor in document["tensors"].items()
        },
    )


def _check(manifest: Manifest) -> None:
    """Raises ValueError with what contradicts what, so that no offset can lead outside a file."""
    if manifest.dtype not in DTYPES:
        raise ValueError(f"dtype {manifest.dtype}")
    if manifest.tensors.keys() != manifest.graph.weights.keys():
        raise ValueError("tensors and the graph's weights differ")
    for file in manifest.shards:
        if PurePath(file).name != file:
            raise ValueError(f"shard {file} is not a plain file name")
    for name, tensor in manifest.tensors.items():
        recipe = manifest.graph.weights[name]
        if (tensor.dtype, tensor.shape) != (recipe.dtype, recipe.stored_shape):
            raise ValueError(f"tensor {name} is not what the graph takes")
        if tensor.bytes != prod(tensor.shape) * item_bytes(tensor.dtype):
            raise ValueError(f"tensor {name} has the wrong number of bytes")
        if not 0 <= tensor.offset <= manifest.shards[tensor.shard] - tensor.bytes:
            raise ValueError(f"tensor {name} lies outside its shard")
