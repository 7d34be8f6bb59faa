"""Checkpoint to package: executes the weight recipes of a graph as one stream from files to files.

It takes the graph as it will run, and changes nothing about it. Memory stays at a few blocks of rows.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import xxhash

from trivet.base.dtypes import DType, item_bytes
from trivet.base.errors import CheckpointError, ResourceError
from trivet.base.units import GIB, align_up, format_bytes
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.recipe import Recipe, evaluate
from trivet.framework.model.checkpoints.checkpoint import Checkpoint
from trivet.framework.model.checkpoints.digest import source_digest
from trivet.framework.model.checkpoints.safetensors_header import format_header
from trivet.framework.model.config import ModelConfig, parse_config
from trivet.framework.model.manifest import (
    Manifest,
    StoredWeight,
    is_package,
    layout_fingerprint,
    read_manifest,
    write_manifest,
)
from trivet.framework.model.package import Package, open_package
from trivet.framework.model.partial_folder import partial_folder
from trivet.framework.model.tokenizer_files import write_tokenizer_files

ALIGNMENT = 4096  # bytes: a page, and the unit of direct reads from storage
_ENTRY_BYTES = 512  # what a weight and its pad take in a header, generously

_FORMAT_DTYPES: dict[DType, str] = {"float32": "F32", "bfloat16": "BF16"}

# Tensors that old checkpoints carry and no model needs: rotary frequencies follow from the configuration.
_IGNORABLE = re.compile(r"(^|\.)rotary_emb\.inv_freq$")

Progress = Callable[[int, int], None]  # bytes written, bytes in all


@dataclass(frozen=True)
class _Shard:
    file: str
    header: bytes
    weights: tuple[str, ...]
    num_bytes: int


def convert(
    checkpoint: Checkpoint,
    graph: Graph,
    destination: Path,
    *,
    dtype: DType,
    level: int,
    replace: bool = False,
    shard_bytes: int = GIB,
    progress: Progress | None = None,
) -> Package:
    """Write the package of `graph` at `destination` and open it; reuse what is there if it is the same package.

    `dtype` and `level` say how the graph was made. `replace` allows a different package to be overwritten. A shard
    takes `shard_bytes` or one weight. The folder appears when all of it is on disk, or not at all.

    Raises CheckpointError when checkpoint and graph do not fit, or something else is at `destination`;
    ConfigError for the checkpoint's configuration; ResourceError when the disk has too little space.
    """
    config = parse_config(checkpoint.config)
    _check_sources(checkpoint, graph, config)
    digest = source_digest(checkpoint.path)
    if destination.exists():
        package = _existing(destination, graph, digest, dtype, level, replace)
        if package is not None:
            return package
    shards = _plan_shards(graph, shard_bytes)
    _check_space(destination, sum(shard.num_bytes for shard in shards))
    with _out_of_space(destination), partial_folder(destination) as folder:
        tensors = _write_shards(checkpoint, graph, folder, shards, progress or (lambda written, total: None))
        write_tokenizer_files(checkpoint.tokenizer, folder)
        sizes = {shard.file: shard.num_bytes for shard in shards}
        name = checkpoint.path.resolve().stem if checkpoint.path.is_file() else checkpoint.path.resolve().name
        write_manifest(Manifest(config, dtype, level, graph, name, digest, sizes, tensors), folder)
        for file in folder.iterdir():
            _sync(file)
        if is_package(destination):
            shutil.rmtree(destination)
    return open_package(destination, verify=False)  # every byte was hashed on its way out


def _check_sources(checkpoint: Checkpoint, graph: Graph, config: ModelConfig) -> None:
    """Every tensor a recipe wants is there as wanted, and every tensor that is there is wanted."""
    used = set()
    for weight, recipe in graph.weights.items():
        for source in recipe.sources:
            used.add(source.tensor)
            entry = checkpoint.tensors.get(source.tensor)
            if entry is None:
                raise CheckpointError(
                    f"{checkpoint.path}: tensor {source.tensor} is missing, weight {weight} is made from it",
                    "the checkpoint is incomplete, or its config.json is that of another model",
                )
            if entry.shape != source.shape:
                raise CheckpointError(
                    f"{checkpoint.path}: tensor {source.tensor} is {list(entry.shape)}, "
                    f"its config.json asks for {list(source.shape)}"
                )
            if entry.dtype is None:
                raise CheckpointError(
                    f"{checkpoint.path}: tensor {source.tensor} is {entry.stored}, F32, F16 or BF16 was wanted",
                    "use the checkpoint's unquantised version",
                )
    unused = [name for name in checkpoint.tensors if name not in used and not _is_ignorable(name, config)]
    if unused:
        more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
        raise CheckpointError(
            f"{checkpoint.path}: {len(unused)} tensors have no place in {config.architecture}: "
            f"{', '.join(unused[:5])}{more}",
            "the model computes something that this family does not; its answers would be wrong",
        )


def _is_ignorable(tensor: str, config: ModelConfig) -> bool:
    is_copy = config.has_tied_embeddings and tensor == "lm_head.weight"
    return is_copy or _IGNORABLE.search(tensor) is not None


def _existing(destination: Path, graph: Graph, digest: str, dtype: DType, level: int, replace: bool) -> Package | None:
    """The same package, if that is what is at `destination`; None if what is there may be replaced."""
    if not is_package(destination):
        raise CheckpointError(f"{destination} exists and is not a package", "choose a path where nothing is")
    if replace:
        return None
    there = read_manifest(destination)
    wanted = (digest, dtype, level, layout_fingerprint(graph))
    if (there.source_digest, there.dtype, there.level, layout_fingerprint(there.graph)) == wanted:
        return open_package(destination)
    raise CheckpointError(
        f"{destination} is another package: {there.source_name} in {there.dtype} at level {there.level}",
        "choose another path, or replace it with --force",
    )


def _plan_shards(graph: Graph, shard_bytes: int) -> tuple[_Shard, ...]:
    """Weights in order into shards of at most `shard_bytes`, a larger weight alone in its own."""
    groups: list[list[str]] = []
    filled = 0
    for name, recipe in graph.weights.items():
        size = align_up(_stored_bytes(recipe), ALIGNMENT) + _ENTRY_BYTES
        if not groups or filled + size > shard_bytes:
            groups.append([])
            filled = ALIGNMENT
        groups[-1].append(name)
        filled += size
    shards, num_pads = [], 0
    for number, names in enumerate(groups, 1):
        # The format allows no holes, so what aligns the next tensor is a tensor too; no two pads share a name.
        entries: list[tuple[str, str, tuple[int, ...], int]] = []
        for name in names:
            recipe = graph.weights[name]
            size = _stored_bytes(recipe)
            entries.append((name, _format_dtype(recipe), recipe.stored_shape, size))
            pad = -size % ALIGNMENT
            if pad:
                entries.append((f"_pad.{num_pads}", "U8", (pad,), pad))
                num_pads += 1
        header = format_header(entries, ALIGNMENT)
        num_bytes = len(header) + sum(size for *_, size in entries)
        shards.append(_Shard(f"model-{number:05}-of-{len(groups):05}.safetensors", header, tuple(names), num_bytes))
    return tuple(shards)


def _write_shards(
    checkpoint: Checkpoint, graph: Graph, folder: Path, shards: tuple[_Shard, ...], progress: Progress
) -> Mapping[str, StoredWeight]:
    total = sum(_stored_bytes(recipe) for recipe in graph.weights.values())
    written = 0
    tensors = {}
    for shard in shards:
        with (folder / shard.file).open("wb") as file:
            file.write(shard.header)
            for name in shard.weights:
                recipe = graph.weights[name]
                assert recipe.dtype is not None
                offset, size = file.tell(), _stored_bytes(recipe)
                hasher = xxhash.xxh3_64()
                for block in evaluate(recipe, checkpoint.read_rows):
                    hasher.update(block.data)
                    file.write(block.data)
                    written += block.nbytes
                    progress(written, total)
                assert file.tell() == offset + size, f"{name}: the recipe gave another size than it says"
                file.write(bytes(-size % ALIGNMENT))
                shape = recipe.stored_shape
                tensors[name] = StoredWeight(shard.file, offset, size, recipe.dtype, shape, hasher.hexdigest())
    return tensors


def _stored_bytes(recipe: Recipe) -> int:
    assert recipe.dtype is not None, "conversion takes a graph whose weights have their dtypes"
    return prod(recipe.stored_shape) * item_bytes(recipe.dtype)


def _format_dtype(recipe: Recipe) -> str:
    assert recipe.dtype is not None
    return _FORMAT_DTYPES[recipe.dtype]


def _check_space(destination: Path, needed: int) -> None:
    place = next(parent for parent in destination.absolute().parents if parent.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise ResourceError(
            f"{place}: {format_bytes(free)} free, the package needs {format_bytes(needed)}",
            "free some space, or name another place: an output path, or TRIVET_CACHE",
        )


@contextmanager
def _out_of_space(destination: Path) -> Iterator[None]:
    """The disk may still fill while it is written to: say so as ours."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ResourceError(
            f"{destination}: the disk is full ({error.strerror})", "free some space, try again"
        ) from None


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
