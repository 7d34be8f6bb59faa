"""What a package says of itself: trivet.json. The one place that knows its keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import prod
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import xxhash

from trivet import __version__
from trivet.base.dtypes import DTYPES, GROUP, DType, cast, item_bytes
from trivet.base.errors import CheckpointError, ConfigError, GraphError
from trivet.framework.graph import ir
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.recipe import is_size
from trivet.framework.model import config as configs
from trivet.framework.model.config import ModelConfig
from trivet.framework.model.json_file import read_json, write_json
from trivet.operators.panels import PANEL_OUTPUTS, pack_panels

FORMAT = 3
FILE = "trivet.json"
ALIGNMENT = 4096  # bytes, of every weight in its file: a page, and the unit of direct reads from storage


@dataclass(frozen=True)
class StoredWeight:
    """A weight, or a rank's piece of it: `offset` in bytes from the start of the shard, `shape` as it is stored."""

    shard: str
    offset: int
    bytes: int
    dtype: DType
    shape: tuple[int, ...]
    xxh3: str  # XXH3-64 of the bytes, in hexadecimal


@dataclass(frozen=True)
class Manifest:
    """trivet.json, understood."""

    config: ModelConfig
    dtype: DType  # of weights and activations, where the graph does not say otherwise
    level: int  # of the passes the graph went through
    graph: Graph
    source_name: str
    source_digest: str
    num_ranks: int  # the tensor-parallel ranks that the weights are cut for
    shards: Mapping[str, int]  # file name → bytes
    # In the graph's order. One entry: all ranks read it. Else one for each rank, who reads that alone.
    tensors: Mapping[str, tuple[StoredWeight, ...]]

    def of_rank(self, rank: int) -> dict[str, StoredWeight]:
        """Every byte range that a rank reads, by weight."""
        return {name: pieces[rank if len(pieces) > 1 else 0] for name, pieces in self.tensors.items()}


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
            "fingerprint": layout_fingerprint(manifest.graph, manifest.num_ranks),
            "tensor_parallel": manifest.num_ranks,
            "shards": [{"file": file, "bytes": size} for file, size in manifest.shards.items()],
            "tensors": {name: [asdict(piece) for piece in pieces] for name, pieces in manifest.tensors.items()},
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
    if version < FORMAT:
        raise CheckpointError(
            f"{path}: package format {version} is older than this trivet reads ({FORMAT})", "convert the model again"
        )
    try:
        manifest = _from_json(document)
        _check(manifest)
        fingerprint = layout_fingerprint(manifest.graph, manifest.num_ranks)
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
        ConfigError,
        GraphError,
    ) as error:
        raise CheckpointError(f"{path} is damaged: {error!r}", "convert the model again") from None
    if document.get("fingerprint") != fingerprint:
        raise CheckpointError(
            f"{path}: the weights are laid out as another version of trivet ({document.get('trivet')}) wants them",
            "convert the model again",
        )
    return manifest


def layout_fingerprint(graph: Graph, num_ranks: int = 1) -> str:
    """XXH3-64 of how the bytes of every weight lie: equal fingerprints can be exchanged without converting."""
    layout: list[object] = [
        [name, list(recipe.stored_shape), recipe.dtype, recipe.layout] for name, recipe in graph.weights.items()
    ]
    ramps = (np.arange(3 * PANEL_OUTPUTS, dtype=dtype).reshape(PANEL_OUTPUTS, 3) for dtype in ("u2", "f4"))
    panels = [pack_panels(ramp).ravel().tolist() for ramp in ramps]
    if any(recipe.dtype == "int8" for recipe in graph.weights.values()):
        ramp = np.linspace(-1, 1, PANEL_OUTPUTS * (GROUP + 1), dtype=np.float32).reshape(PANEL_OUTPUTS, -1)
        panels.append(pack_panels(cast(ramp, "float32", "int8")).ravel().tolist())
    return str(xxhash.xxh3_64_hexdigest(json.dumps([layout, panels, num_ranks]).encode()))


def _from_json(document: Mapping[str, Any]) -> Manifest:
    return Manifest(
        config=configs.from_json(document["config"]),
        dtype=document["dtype"],
        level=document["level"],
        graph=ir.from_json(document["graph"]),
        source_name=document["source"]["name"],
        source_digest=document["source"]["digest"],
        num_ranks=document["tensor_parallel"],
        shards={shard["file"]: shard["bytes"] for shard in document["shards"]},
        tensors={
            name: tuple(StoredWeight(**{**piece, "shape": tuple(piece["shape"])}) for piece in pieces)
            for name, pieces in document["tensors"].items()
        },
    )


def _check(manifest: Manifest) -> None:
    """Raises ValueError with what contradicts what, so that no offset can lead outside a file."""
    if manifest.dtype not in DTYPES:
        raise ValueError(f"dtype {manifest.dtype}")
    if manifest.tensors.keys() != manifest.graph.weights.keys():
        raise ValueError("tensors and the graph's weights differ")
    for file, size in manifest.shards.items():
        if PurePath(file).name != file or not is_size(size):
            raise ValueError(f"shard {file} of {size} bytes is not a plain file name")
    if not is_size(manifest.num_ranks) or manifest.num_ranks < 1:
        raise ValueError(f"tensor_parallel {manifest.num_ranks}")
    for name, pieces in manifest.tensors.items():
        if len(pieces) not in (1, manifest.num_ranks):
            raise ValueError(f"tensor {name} has {len(pieces)} pieces for {manifest.num_ranks} ranks")
        recipe = manifest.graph.weights[name]
        for piece in pieces:
            if not all(map(is_size, (piece.offset, piece.bytes, *piece.shape))) or not int(piece.xxh3, 16) < 1 << 64:
                raise ValueError(f"tensor {name} has numbers that are none")
            if piece.dtype != recipe.dtype or (len(pieces) == 1 and piece.shape != recipe.stored_shape):
                raise ValueError(f"tensor {name} is not what the graph takes")
            if piece.bytes != prod(piece.shape) * item_bytes(piece.dtype):
                raise ValueError(f"tensor {name} has the wrong number of bytes")
            if piece.offset > manifest.shards[piece.shard] - piece.bytes or piece.offset % ALIGNMENT:
                raise ValueError(f"tensor {name} lies outside its shard, or not on a page of it")
    places = sorted((each.shard, each.offset, each.bytes) for pieces in manifest.tensors.values() for each in pieces)
    for (file, start, size), (next_file, next_start, _) in pairwise(places):
        if file == next_file and start + size > next_start:
            raise ValueError(f"tensors overlap in {file} at {next_start}")
