"""Weights cut for tensor-parallel ranks: together they are the whole, and each rank reads its own bytes only."""

from itertools import pairwise

import numpy as np
import pytest
from small_model import LLAMA_CONFIG, TINY, llama_tensors, write_folder

from trivet.base.errors import CheckpointError, ConfigError
from trivet.framework.model import package as packages
from trivet.framework.model.convert import convert
from trivet.framework.model.families.names import split_of
from trivet.framework.model.manifest import read_manifest
from trivet.framework.model.package import open_package
from trivet.framework.model.steps import Wanted
from trivet.operators.panels import unpack_panels


def logical(package, name, stored):
    """The piece as a matrix, its padding gone: rows that the whole has not are not compared."""
    recipe = package.graph.weights[name]
    if recipe.layout == "rows":
        return stored
    _, num_pairs, outputs, _ = stored.shape
    return unpack_panels(stored, len(stored) * outputs, 2 * num_pairs)


@pytest.mark.parametrize("target", ["cpu", "torch"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_ranks_pieces_put_together_are_the_whole(tmp_path, family, target):
    whole = convert(TINY / family, tmp_path / "whole", Wanted(target=target)).package
    convert(TINY / family, tmp_path / "cut", Wanted(target=target, num_ranks=2))
    ranks = [open_package(tmp_path / "cut", rank=rank) for rank in range(2)]

    for name, recipe in whole.graph.weights.items():
        pieces = [logical(whole, name, rank.weights[name]) for rank in ranks]
        matrix = logical(whole, name, whole.weights[name])
        row, starts = 0, [0, 0]
        for source in recipe.sources:
            block = matrix[row : row + source.shape[0]]
            row += source.shape[0]
            split = split_of(family, source.tensor)
            parts = []
            for rank, piece in enumerate(pieces):
                height = source.shape[0] // (2 if split == "outputs" else 1)
                parts.append(piece[starts[rank] : starts[rank] + height])
                starts[rank] += height
            wanted = {"outputs": parts, "inputs": [np.concatenate(parts, axis=-1)], None: parts[:1]}[split]

            np.testing.assert_array_equal(np.concatenate(wanted), block)


def test_a_rank_reads_its_own_bytes_and_what_all_share_and_no_other(tmp_path, monkeypatch):
    convert(TINY / "llama", tmp_path / "cut", Wanted(num_ranks=2, shard_bytes=60_000))
    manifest = read_manifest(tmp_path / "cut")
    shared = {pieces[0] for pieces in manifest.tensors.values() if len(pieces) == 1}
    ranges = [set(manifest.of_rank(rank).values()) for rank in range(2)]
    files = [{piece.shard for piece in each - shared} for each in ranges]
    mapped = []
    real = packages._map
    monkeypatch.setattr(packages, "_map", lambda file, size: mapped.append(file.name) or real(file, size))
    open_package(tmp_path / "cut", rank=1)

    assert shared == ranges[0] & ranges[1]
    assert set() == files[0] & files[1]
    assert files[1] | {piece.shard for piece in shared} == set(mapped)
    assert set(manifest.shards) == files[0] | files[1] | {piece.shard for piece in shared}


def test_ranges_begin_on_pages_and_do_not_overlap(tmp_path):
    convert(TINY / "qwen2", tmp_path / "cut", Wanted(num_ranks=2))
    pieces = {piece for pieces in read_manifest(tmp_path / "cut").tensors.values() for piece in pieces}
    ordered = sorted(pieces, key=lambda piece: (piece.shard, piece.offset))

    assert {0} == {piece.offset % 4096 for piece in pieces}
    for before, after in pairwise(ordered):
        assert before.shard != after.shard or before.offset + before.bytes <= after.offset


def test_a_head_tied_to_the_embedding_is_whole_on_every_rank(tmp_path):
    config = {**LLAMA_CONFIG, "tie_word_embeddings": True}
    write_folder(tmp_path / "model", llama_tensors(config), config)
    convert(tmp_path / "model", tmp_path / "cut", Wanted(num_ranks=2))

    assert 1 == len(read_manifest(tmp_path / "cut").tensors["embed.weight"])


def test_what_does_not_divide_is_refused_before_writing(tmp_path):
    with pytest.raises(ConfigError, match="--tensor-parallel 3 does not divide the model's num_kv_heads, 2"):
        convert(TINY / "llama", tmp_path / "cut", Wanted(num_ranks=3))
    assert [] == list(tmp_path.iterdir())


def test_a_package_for_ranks_is_not_opened_as_a_whole_nor_for_a_rank_it_has_not(tmp_path):
    convert(TINY / "llama", tmp_path / "cut", Wanted(num_ranks=2))

    with pytest.raises(CheckpointError, match="cut for 2 tensor-parallel ranks, one process runs whole models"):
        open_package(tmp_path / "cut")
    for rank in (-1, 2):
        with pytest.raises(CheckpointError, match=f"cut for ranks 0 to 1, rank {rank} was asked for"):
            open_package(tmp_path / "cut", rank=rank)
