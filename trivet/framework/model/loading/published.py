"""A model's tensors under their published names, as another engine takes them: where they lie, and what they are.

A checkpoint's are as they were stored. Of a package the recipes are undone; what only its graph needs is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trivet.base.dtypes import Array, DType, cast, storage
from trivet.base.errors import CheckpointError
from trivet.framework.graph.recipe import Recipe, undo
from trivet.framework.model.checkpoints.stored import StoredTensor
from trivet.framework.model.loading.extents import Range
from trivet.framework.model.loading.weights import package_ranges, stored_tensors
from trivet.framework.model.manifest import is_package
from trivet.framework.model.package import Package, open_package

# A package's formats in the spelling of safetensors. An integer times its scale is exact in float32.
_SPELLING: dict[DType, str] = {"float32": "F32", "bfloat16": "BF16", "int8": "F32"}


@dataclass(frozen=True)
class PublishedTensor:
    """A tensor as a publisher would store it; `dtype` in the spelling of safetensors: F32, BF16, F8_E4M3."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Array  # [bytes], uint8


@dataclass(frozen=True)
class PublishedModel:
    """What has to be read, and what each range holds, given its name and its bytes."""

    ranges: tuple[Range, ...]
    tensors_in: Callable[[str, Array], Iterator[PublishedTensor]]


def published_model(folder: Path) -> PublishedModel:
    """The tensors of a package, or of a published safetensors folder of any architecture. No weight is read.

    Matrices of int8 come as float32, exactly as the package has them.

    Raises CheckpointError for what is neither, a package that is cut for ranks, and files that are not what they say.
    """
    if is_package(folder):
        return _of_package(open_package(folder, verify=False))
    return _of_checkpoint(folder)


def _of_checkpoint(folder: Path) -> PublishedModel:
    ranges: list[Range] = []
    tensors: dict[str, StoredTensor] = {}
    for file, tensor in stored_tensors(folder):
        if tensor.name in tensors:
            raise CheckpointError(
                f"{folder}: tensor {tensor.name} is in two files, the second is {file.name}",
                "remove the files that do not belong to the model",
            )
        ranges.append(Range(tensor.name, file, tensor.offset, tensor.num_bytes))
        tensors[tensor.name] = tensor

    def tensors_in(name: str, data: Array) -> Iterator[PublishedTensor]:
        yield PublishedTensor(name, tensors[name].dtype, tensors[name].shape, data)

    return PublishedModel(tuple(ranges), tensors_in)


def _of_package(package: Package) -> PublishedModel:
    wanted: dict[str, Recipe] = {}
    given: set[str] = set()
    for name, recipe in package.graph.weights.items():
        sources = {source.tensor for source in recipe.sources}
        if not sources <= given:  # a head tied to the embedding is packed from what the embedding gives already
            wanted[name] = recipe
            given |= sources
    ranges = package_ranges(package.path, {name: package.stored[name] for name in wanted})
    return PublishedModel(tuple(ranges), partial(_undone, wanted))


def _undone(recipes: dict[str, Recipe], name: str, data: Array) -> Iterator[PublishedTensor]:
    recipe = recipes[name]
    assert recipe.dtype is not None, "a package's weights have their dtypes"
    stored = data.view(storage(recipe.dtype)).reshape(recipe.stored_shape)
    for source, rows in undo(recipe, stored):
        values = cast(rows, "int8", "float32") if recipe.dtype == "int8" else rows
        yield PublishedTensor(source.tensor, _SPELLING[recipe.dtype], source.shape, values.reshape(-1).view("u1"))
