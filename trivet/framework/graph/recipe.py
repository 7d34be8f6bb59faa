"""How a weight is made from the tensors of a checkpoint: data that passes rewrite and conversion executes.

A recipe is evaluated in blocks of rows, so that the memory it takes does not grow with the tensor. It names tensors;
it holds none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trivet.base.dtypes import Array, DType, cast, row_bytes, storage
from trivet.base.errors import GraphError
from trivet.operators.contract import Layout
from trivet.operators.panels import PANEL_OUTPUTS, pack_panels, panels_shape, unpack_panels

# rows [start, stop) of the named tensor, in float32 or in bfloat16's storage, with the dtype they are in
ReadRows = Callable[[str, int, int], tuple[Array, DType]]

BLOCK_BYTES = 32 << 20


@dataclass(frozen=True)
class Source:
    """A tensor of the checkpoint by its published name, or a block of it: `shape` from row and column `origin` on."""

    tensor: str
    shape: tuple[int, ...]
    origin: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Concatenate:
    """Parts one below the other, along the first axis."""

    parts: tuple[Source, ...]


@dataclass(frozen=True)
class Constant:
    """Numbers computed from the configuration, not read: rotary frequencies."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Recipe:
    """What to read, then the format and the layout to store it in."""

    content: Source | Concatenate | Constant
    dtype: DType | None = None  # None: not assigned yet
    layout: Layout = "rows"

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape, before any packing."""
        match self.content:
            case Source(shape=shape):
                return shape
            case Concatenate(parts=parts):
                return (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
            case Constant(values=values):
                return (len(values),)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the array that is written, in elements of its storage."""
        assert self.dtype is not None, "how a weight is stored is known once its dtype is assigned"
        if self.layout == "panels":
            outputs, inputs = self.shape
            return panels_shape(outputs, inputs, self.dtype)
        return (*self.shape[:-1], row_bytes(self.shape[-1], "int8")) if self.dtype == "int8" else self.shape

    @property
    def sources(self) -> tuple[Source, ...]:
        match self.content:
            case Source():
                return (self.content,)
            case Concatenate(parts=parts):
                return parts
            case Constant():
                return ()


def concatenate(recipes: tuple[Recipe, ...]) -> Recipe:
    """One weight whose rows are those of `recipes`, in order."""
    if len({(recipe.dtype, recipe.layout, recipe.shape[1:]) for recipe in recipes}) != 1:
        raise GraphError("concatenate: the weights differ in dtype, layout or width")
    parts = tuple(source for recipe in recipes for source in recipe.sources)
    return Recipe(Concatenate(parts), recipes[0].dtype, recipes[0].layout)


def evaluate(recipe: Recipe, read_rows: ReadRows, block_bytes: int = BLOCK_BYTES) -> Iterator[Array]:
    """The stored bytes of a weight as contiguous arrays, in order, each about `block_bytes` or less."""
    assert recipe.dtype is not None, "a recipe can be executed once its dtype is assigned"
    if isinstance(recipe.content, Constant):
        yield np.asarray(recipe.content.values, dtype=storage(recipe.dtype))
        return
    num_rows = recipe.shape[0]
    row_bytes = 4 * int(np.prod(recipe.shape[1:], dtype=np.int64))
    step = max(1, block_bytes // max(1, row_bytes))
    if recipe.layout == "panels":
        step = max(PANEL_OUTPUTS, step // PANEL_OUTPUTS * PANEL_OUTPUTS)
    for start in range(0, num_rows, step):
        rows = _rows(recipe, start, min(start + step, num_rows), read_rows)
        yield pack_panels(rows) if recipe.layout == "panels" else np.ascontiguousarray(rows)


def undo(recipe: Recipe, stored: Array) -> Iterator[tuple[Source, Array]]:
    """The parts that a weight was made from, of its stored array: rows in the recipe's dtype; none of a constant.

    Nothing is lost on the way back; what was lost is what casting to that dtype took. Parts of rows are views.
    """
    rows = unpack_panels(stored, *recipe.shape) if recipe.layout == "panels" else stored
    start = 0
    for source in recipe.sources:
        yield source, rows[start : start + source.shape[0]]
        start += source.shape[0]


def _rows(recipe: Recipe, start: int, stop: int, read_rows: ReadRows) -> Array:
    """Rows [start, stop) of the logical tensor, in the recipe's dtype."""
    assert recipe.dtype is not None
    parts, offset = [], 0
    for source in recipe.sources:
        low, high = max(start - offset, 0), min(stop - offset, source.shape[0])
        offset += source.shape[0]
        if low < high:
            row, column = source.origin
            rows, dtype = read_rows(source.tensor, row + low, row + high)
            block = rows if rows.ndim == 1 else rows[:, column : column + source.shape[1]]
            parts.append(cast(block, dtype, recipe.dtype))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def to_json(recipe: Recipe) -> dict[str, Any]:
    match recipe.content:
        case Source(tensor=tensor, shape=shape):
            content: dict[str, Any] = {"source": tensor, "shape": list(shape)}
        case Concatenate(parts=parts):
            content = {"concatenate": [{"source": part.tensor, "shape": list(part.shape)} for part in parts]}
        case Constant(values=values):
            content = {"constant": list(values)}
    return {**content, "dtype": recipe.dtype, "layout": recipe.layout}


def from_json(document: dict[str, Any]) -> Recipe:
    content: Source | Concatenate | Constant
    if "source" in document:
        content = _source(document)
    elif "concatenate" in document:
        content = Concatenate(tuple(_source(part) for part in document["concatenate"]))
    else:
        content = Constant(tuple(document["constant"]))
    return Recipe(content, document["dtype"], document["layout"])


def is_size(value: object) -> bool:
    """A number of elements, as JSON has it."""
    return type(value) is int and value >= 0


def _source(document: dict[str, Any]) -> Source:
    if not all(map(is_size, document["shape"])):
        raise ValueError(f"{document['source']} has the shape {document['shape']}")
    return Source(document["source"], tuple(document["shape"]))
