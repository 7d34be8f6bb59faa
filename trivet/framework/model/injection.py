"""Weights into shards: every recipe executed as a stream, shard by shard, each recorded once it is on disk.

Memory stays at a few blocks of rows. A shard that is recorded is not written again; one that is not starts over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import xxhash

from trivet.framework.graph.recipe import ReadRows, evaluate
from trivet.framework.model.journal import Journal
from trivet.framework.model.manifest import ALIGNMENT, StoredWeight
from trivet.framework.model.shards import Shard, stored_bytes

Done = Callable[[int], None]  # bytes since the last call


def inject(
    shards: Sequence[Shard], read_rows: ReadRows, folder: Path, journal: Journal, done: Done
) -> tuple[dict[str, tuple[StoredWeight, ...]], int]:
    """Write what is missing of `shards` into `folder`; where every weight lies, and how many shards were there."""
    pieces: dict[str, list[StoredWeight]] = {}
    num_kept = 0
    for shard in shards:
        path = folder / shard.file
        stored = _recalled(journal.recall(shard.file), path, shard)
        if stored is None:
            stored = _write(shard, path, read_rows, done)
        else:
            num_kept += 1
            done(sum(piece.bytes for piece in stored))
        journal.record(shard.file, [_to_json(piece) for piece in stored])
        for piece, weight in zip(stored, shard.pieces, strict=True):
            pieces.setdefault(weight.weight, []).append(piece)
    return {name: tuple(each) for name, each in pieces.items()}, num_kept


def _recalled(made: object, path: Path, shard: Shard) -> list[StoredWeight] | None:
    """What the journal says of a shard, if the file is still there as it was left."""
    if not isinstance(made, list) or not path.is_file() or path.stat().st_size != shard.num_bytes:
        return None
    return [StoredWeight(**{**piece, "shape": tuple(piece["shape"])}) for piece in made]


def _write(shard: Shard, path: Path, read_rows: ReadRows, done: Done) -> list[StoredWeight]:
    stored = []
    with path.open("wb") as file:
        file.write(shard.header)
        for piece in shard.pieces:
            recipe = piece.recipe
            assert recipe.dtype is not None
            offset, size = file.tell(), stored_bytes(recipe)
            hasher = xxhash.xxh3_64()
            for block in evaluate(recipe, read_rows):
                hasher.update(block.data)
                file.write(block.data)
                done(block.nbytes)
            assert file.tell() == offset + size, f"{piece.name}: the recipe gave another size than it says"
            file.write(bytes(-size % ALIGNMENT))
            shape = recipe.stored_shape
            stored.append(StoredWeight(shard.file, offset, size, recipe.dtype, shape, hasher.hexdigest()))
        file.flush()
        os.fsync(file.fileno())  # before the journal says so
    return stored


def _to_json(piece: StoredWeight) -> Mapping[str, object]:
    return {**asdict(piece), "shape": list(piece.shape)}
