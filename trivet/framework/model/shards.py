"""Which piece of which weight lies where: the files of a package, planned to the byte before one is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from trivet.base.dtypes import DType, item_bytes
from trivet.base.units import align_up
from trivet.framework.graph.recipe import Recipe
from trivet.framework.model.checkpoints.safetensors_header import format_header
from trivet.framework.model.manifest import ALIGNMENT
from trivet.framework.model.pieces import Piece

SHARD_BYTES = 10**9  # a gigabyte: what object stores and file systems all take, and what a killed conversion may lose

_ENTRY_BYTES = 512  # what a weight and its pad take in a header, generously
# int8 is bytes to other readers: its scales lie among its integers.
_FORMAT_DTYPES: dict[DType, str] = {"float32": "F32", "bfloat16": "BF16", "int8": "U8"}


@dataclass(frozen=True)
class Shard:
    file: str
    header: bytes
    pieces: tuple[Piece, ...]
    num_bytes: int


def plan_shards(pieces: Sequence[Piece], shard_bytes: int = SHARD_BYTES) -> tuple[Shard, ...]:
    """Pieces in order into shards of at most `shard_bytes`, a larger piece alone in its own.

    No shard has pieces of two ranks, or of one rank and of all: a rank reads whole files and no byte of another's.
    """
    groups: list[list[Piece]] = []
    filled = 0
    for piece in pieces:
        size = align_up(stored_bytes(piece.recipe), ALIGNMENT) + _ENTRY_BYTES
        if not groups or filled + size > shard_bytes or groups[-1][-1].rank != piece.rank:
            groups.append([])
            filled = ALIGNMENT
        groups[-1].append(piece)
        filled += size
    shards, num_pads = [], 0
    for number, group in enumerate(groups, 1):
        # The format allows no holes, so what aligns the next tensor is a tensor too; no two pads share a name.
        entries: list[tuple[str, str, tuple[int, ...], int]] = []
        for piece in group:
            size = stored_bytes(piece.recipe)
            entries.append((piece.name, _format_dtype(piece.recipe), piece.recipe.stored_shape, size))
            pad = -size % ALIGNMENT
            if pad:
                entries.append((f"_pad.{num_pads}", "U8", (pad,), pad))
                num_pads += 1
        header = format_header(entries, ALIGNMENT)
        num_bytes = len(header) + sum(size for *_, size in entries)
        shards.append(Shard(f"model-{number:05}-of-{len(groups):05}.safetensors", header, tuple(group), num_bytes))
    return tuple(shards)


def stored_bytes(recipe: Recipe) -> int:
    assert recipe.dtype is not None, "conversion takes a graph whose weights have their dtypes"
    return prod(recipe.stored_shape) * item_bytes(recipe.dtype)


def _format_dtype(recipe: Recipe) -> str:
    assert recipe.dtype is not None
    return _FORMAT_DTYPES[recipe.dtype]
