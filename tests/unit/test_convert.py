import errno
import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from small_model import LLAMA_CONFIG, TINY, weights_graph, write_folder

from trivet.base.dtypes import cast
from trivet.base.errors import CheckpointError, ResourceError
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.recipe import Concatenate, Constant, Recipe, Source
from trivet.framework.model.checkpoints.digest import source_digest
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.framework.model.convert import convert
from trivet.operators.contract import TensorSpec
from trivet.operators.panels import pack_panels

RNG = np.random.default_rng(0)
A = RNG.standard_normal((40, 24)).astype(np.float32)
B = RNG.standard_normal((8, 24)).astype(np.float32)
V = RNG.standard_normal(24).astype(np.float32)
SHAPES = {"a": (40, 24), "b": (8, 24), "v": (24,)}


@pytest.fixture
def checkpoint(tmp_path):
    return open_checkpoint(write_folder(tmp_path / "model", {"a": A, "b": B, "v": V}))


def to_float32(checkpoint, destination, graph=None, **options):
    graph = graph or weights_graph(SHAPES, "float32")
    return convert(checkpoint, graph, destination, dtype="float32", level=0, **options)


def test_weights_are_what_their_recipes_say(checkpoint, tmp_path):
    parts = (Source("a", (40, 24)), Source("b", (8, 24)))
    recipes = {
        "norm": Recipe(Source("v", (24,)), "float32"),
        "merged": Recipe(Concatenate(parts), "bfloat16", "panels"),
        "frequencies": Recipe(Constant((1.0, 0.5)), "float32"),
    }
    values = {name: TensorSpec(recipe.shape, recipe.dtype, recipe.layout) for name, recipe in recipes.items()}
    graph = Graph("merged", (), (), (), values, recipes, ())
    package = convert(checkpoint, graph, tmp_path / "package", dtype="bfloat16", level=3)

    assert ["norm", "merged", "frequencies"] == list(package.weights)
    assert graph == package.graph
    np.testing.assert_array_equal(V, package.weights["norm"])
    np.testing.assert_array_equal(
        pack_panels(cast(np.concatenate([A, B]), "float32", "bfloat16")), package.weights["merged"]
    )
    np.testing.assert_array_equal(np.float32([1, 0.5]), package.weights["frequencies"])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_published_checkpoint_is_converted_whole(tmp_path, family):
    checkpoint = open_checkpoint(TINY / family)
    graph = weights_graph({name: entry.shape for name, entry in checkpoint.tensors.items()})
    package = convert(checkpoint, graph, tmp_path / "package", dtype="bfloat16", level=0)

    assert family == package.config.family
    assert checkpoint.tokenizer == package.tokenizer
    for name, entry in checkpoint.tensors.items():
        np.testing.assert_array_equal(checkpoint.read_rows(name, 0, entry.shape[0])[0], package.weights[f"w.{name}"])


def test_the_safetensors_library_opens_every_shard(checkpoint, tmp_path):
    to_float32(checkpoint, tmp_path / "package", shard_bytes=16384)
    shards = sorted((tmp_path / "package").glob("*.safetensors"))
    tensors = {}
    for shard in shards:
        tensors |= safetensors.numpy.load_file(shard)

    assert [f"model-{i:05}-of-00002.safetensors" for i in (1, 2)] == [shard.name for shard in shards]
    for name, array in {"w.a": A, "w.b": B, "w.v": V}.items():
        np.testing.assert_array_equal(array, tensors.pop(name))
    assert ["_pad.0", "_pad.1", "_pad.2"] == sorted(tensors)


def test_shards_stay_within_their_size_and_a_larger_weight_is_alone(tmp_path):
    sizes = [1000, 3, 4096, 20000, 1, 1, 9000]
    arrays = {f"t{i}": np.zeros((rows, 1), np.float32) for i, rows in enumerate(sizes)}
    checkpoint = open_checkpoint(write_folder(tmp_path / "model", arrays))
    graph = weights_graph({name: array.shape for name, array in arrays.items()}, "float32")
    to_float32(checkpoint, tmp_path / "package", graph, shard_bytes=45056)
    shards = sorted((tmp_path / "package").glob("*.safetensors"))
    names = [sorted(n for n in safetensors.numpy.load_file(s) if not n.startswith("_pad")) for s in shards]

    assert [["w.t0", "w.t1", "w.t2"], ["w.t3"], ["w.t4", "w.t5"], ["w.t6"]] == names
    assert [True, False, True, True] == [shard.stat().st_size <= 45056 for shard in shards]


def test_progress_counts_every_byte(checkpoint, tmp_path):
    calls = []
    package = to_float32(checkpoint, tmp_path / "package", progress=lambda done, total: calls.append((done, total)))

    assert (package.weight_bytes, package.weight_bytes) == calls[-1]
    assert sorted(calls) == calls


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({**SHAPES, "c": (2,)}, r"tensor c is missing, weight w\.c is made from it"),
        ({**SHAPES, "a": (24, 40)}, r"tensor a is \[40, 24\], its config\.json asks for \[24, 40\]"),
        ({"a": (40, 24)}, "2 tensors have no place in LlamaForCausalLM: b, v"),
    ],
)
def test_a_checkpoint_that_does_not_fit_the_graph_is_refused_first(checkpoint, tmp_path, shapes, message):
    with pytest.raises(CheckpointError, match=message):
        to_float32(checkpoint, tmp_path / "package", weights_graph(shapes, "float32"))

    assert [tmp_path / "model"] == list(tmp_path.iterdir())


def test_an_unused_tensor_is_named_up_to_five(tmp_path):
    arrays = {f"t{i}": V for i in range(8)}
    checkpoint = open_checkpoint(write_folder(tmp_path / "model", arrays))

    with pytest.raises(CheckpointError, match=r"7 tensors have no place.*: t1, t2, t3, t4, t5 and 2 more"):
        to_float32(checkpoint, tmp_path / "package", weights_graph({"t0": (24,)}, "float32"))


def test_a_tensor_in_a_format_that_is_not_read_is_refused_first(tmp_path):
    checkpoint = open_checkpoint(write_folder(tmp_path / "model", {"a": np.zeros((2, 2), np.int32)}))

    with pytest.raises(CheckpointError, match="tensor a is I32, F32, F16 or BF16 was wanted"):
        to_float32(checkpoint, tmp_path / "package", weights_graph({"a": (2, 2)}, "float32"))


def test_copies_and_buffers_that_no_model_needs_are_left_out(tmp_path):
    arrays = {"a": A, "lm_head.weight": A, "model.layers.0.self_attn.rotary_emb.inv_freq": V}
    folder = write_folder(tmp_path / "model", arrays, {**LLAMA_CONFIG, "tie_word_embeddings": True})
    package = to_float32(open_checkpoint(folder), tmp_path / "package", weights_graph({"a": (40, 24)}, "float32"))

    assert ["w.a"] == list(package.weights)


def test_a_head_that_is_no_copy_is_not_left_out(tmp_path):
    checkpoint = open_checkpoint(write_folder(tmp_path / "model", {"a": A, "lm_head.weight": A}))

    with pytest.raises(CheckpointError, match=r"no place in LlamaForCausalLM: lm_head\.weight"):
        to_float32(checkpoint, tmp_path / "package", weights_graph({"a": (40, 24)}, "float32"))


def test_the_same_package_is_reused(checkpoint, tmp_path):
    to_float32(checkpoint, tmp_path / "package")
    before = (tmp_path / "package" / "trivet.json").stat().st_ino
    package = to_float32(checkpoint, tmp_path / "package")

    assert before == (tmp_path / "package" / "trivet.json").stat().st_ino
    assert source_digest(checkpoint.path) == package.source_digest


def test_another_package_is_replaced_only_when_asked(checkpoint, tmp_path):
    to_float32(checkpoint, tmp_path / "package")
    graph = weights_graph(SHAPES)

    with pytest.raises(CheckpointError, match=r"is another package: model in float32 at level 0\n.*--force"):
        convert(checkpoint, graph, tmp_path / "package", dtype="bfloat16", level=0)
    replaced = convert(checkpoint, graph, tmp_path / "package", dtype="bfloat16", level=0, replace=True)

    assert "bfloat16" == replaced.dtype


@pytest.mark.parametrize("is_forced", [False, True])
def test_what_is_not_a_package_is_never_replaced(checkpoint, tmp_path, is_forced):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "draft").write_text("dear")

    with pytest.raises(CheckpointError, match="exists and is not a package"):
        to_float32(checkpoint, tmp_path / "letters", replace=is_forced)

    assert "dear" == (tmp_path / "letters" / "draft").read_text()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_conversion_leaves_nothing(checkpoint, tmp_path, error):
    def interrupt(done, total):
        raise error

    with pytest.raises(error):
        to_float32(checkpoint, tmp_path / "package", progress=interrupt)

    assert [tmp_path / "model"] == list(tmp_path.iterdir())


def test_an_interrupted_replacement_leaves_the_old_package(checkpoint, tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    to_float32(checkpoint, tmp_path / "package")
    with pytest.raises(KeyboardInterrupt):
        to_float32(checkpoint, tmp_path / "package", replace=True, progress=interrupt)

    assert source_digest(checkpoint.path) == to_float32(checkpoint, tmp_path / "package").source_digest


def test_too_small_a_disk_is_known_before_writing(checkpoint, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(10_000, 5_000, 5_000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)

    with pytest.raises(ResourceError, match=r"4\.9 KiB free, the package needs \d+\.\d KiB\n.*TRIVET_CACHE"):
        to_float32(checkpoint, tmp_path / "package")


def test_a_disk_that_fills_up_meanwhile_is_an_error_of_ours(checkpoint, tmp_path):
    def full(name, start, stop):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ResourceError, match="the disk is full"):
        to_float32(replace(checkpoint, read_rows=full), tmp_path / "package")

    assert [tmp_path / "model"] == list(tmp_path.iterdir())


PEAK = """
import resource, sys
from pathlib import Path
from small_model import weights_graph
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.framework.model.convert import convert

graph = weights_graph({"a": (98304, 1024)}, panels=True)
checkpoint = open_checkpoint(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert(checkpoint, graph, Path(sys.argv[2]), dtype="bfloat16", level=0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_tensor(tmp_path):
    num_bytes = 98304 * 1024 * 4
    header = f'{{"a":{{"dtype":"F32","shape":[98304,1024],"data_offsets":[0,{num_bytes}]}}}}'.encode()
    write_folder(tmp_path / "model", {})
    with (tmp_path / "model" / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + num_bytes)
    command = [sys.executable, "-c", PEAK, str(tmp_path / "model"), str(tmp_path / "package")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    grown_kib = int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

    assert 384 << 20 == num_bytes
    assert grown_kib << 10 < 256 << 20
