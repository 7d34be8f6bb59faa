import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from small_model import LLAMA_CONFIG, TINY, llama_tensors, weights_graph, write_folder, write_package

from trivet.base.dtypes import cast
from trivet.base.errors import CheckpointError, ResourceError
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.recipe import Concatenate, Constant, Recipe, Source
from trivet.framework.model.checkpoints.digest import source_digest
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.framework.model.config import published_config
from trivet.framework.model.convert import convert
from trivet.framework.model.manifest import is_package
from trivet.framework.model.package import open_package
from trivet.framework.model.steps import Wanted
from trivet.framework.model.tokenizer_merges import joined_merges
from trivet.operators.contract import TensorSpec
from trivet.operators.panels import pack_panels

RNG = np.random.default_rng(0)
A = RNG.standard_normal((40, 24)).astype(np.float32)
B = RNG.standard_normal((8, 24)).astype(np.float32)
V = RNG.standard_normal(24).astype(np.float32)
SHAPES = {"a": (40, 24), "b": (8, 24), "v": (24,)}


def test_weights_are_what_their_recipes_say(tmp_path):
    checkpoint = open_checkpoint(write_folder(tmp_path / "model", {"a": A, "b": B, "v": V}))
    parts = (Source("a", (40, 24)), Source("b", (8, 24)))
    recipes = {
        "norm": Recipe(Source("v", (24,)), "float32"),
        "merged": Recipe(Concatenate(parts), "bfloat16", "panels"),
        "frequencies": Recipe(Constant((1.0, 0.5)), "float32"),
        "block": Recipe(Source("a", (9, 5), origin=(31, 19)), "float32"),
    }
    values = {name: TensorSpec(recipe.shape, recipe.dtype, recipe.layout) for name, recipe in recipes.items()}
    weights = write_package(checkpoint, Graph("merged", (), (), (), values, recipes, ()), tmp_path / "package").weights

    assert ["norm", "merged", "frequencies", "block"] == list(weights)
    np.testing.assert_array_equal(V, weights["norm"])
    np.testing.assert_array_equal(pack_panels(cast(np.concatenate([A, B]), "float32", "bfloat16")), weights["merged"])
    np.testing.assert_array_equal(np.float32([1, 0.5]), weights["frequencies"])
    np.testing.assert_array_equal(A[31:, 19:], weights["block"])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_published_checkpoint_is_converted_whole(tmp_path, family):
    checkpoint = open_checkpoint(TINY / family)
    package = convert(TINY / family, tmp_path / "package", Wanted(level=0, target="torch")).package

    assert family == package.config.family
    joined = joined_merges(checkpoint.tokenizer.tokenizer)
    assert replace(checkpoint.tokenizer, tokenizer=joined) == package.tokenizer
    for name, recipe in package.graph.weights.items():
        for source in recipe.sources:
            rows, dtype = checkpoint.read_rows(source.tensor, 0, source.shape[0])
            np.testing.assert_array_equal(cast(rows, dtype, recipe.dtype), package.weights[name])


def test_the_safetensors_library_opens_every_shard(tmp_path):
    checkpoint = open_checkpoint(write_folder(tmp_path / "model", {"a": A, "b": B, "v": V}))
    write_package(checkpoint, weights_graph(SHAPES, "float32"), tmp_path / "package", shard_bytes=16384)
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
    write_package(checkpoint, graph, tmp_path / "package", shard_bytes=45056)
    shards = sorted((tmp_path / "package").glob("*.safetensors"))
    names = [sorted(n for n in safetensors.numpy.load_file(s) if not n.startswith("_pad")) for s in shards]

    assert [["w.t0", "w.t1", "w.t2"], ["w.t3"], ["w.t4", "w.t5"], ["w.t6"]] == names
    assert [True, False, True, True] == [shard.stat().st_size <= 45056 for shard in shards]


def test_seven_steps_are_told_with_what_they_made(tmp_path):
    converted = convert(TINY / "llama", tmp_path / "package")

    assert ["parse", "build", "map", "optimise", "plan", "inject", "verify"] == [each.step for each in converted.steps]
    assert "39 tensors have their place, 0 left out" == converted.steps[2].made
    assert "known prompt 17 tokens, then token" in converted.steps[6].made


def test_progress_counts_every_byte_written_and_read_again(tmp_path):
    calls = []
    package = convert(TINY / "llama", tmp_path / "package", progress=lambda *told: calls.append(told)).package
    totals = {doing: (done, total) for doing, done, total in calls}

    assert dict.fromkeys(["converting", "verifying"], (package.weight_bytes, package.weight_bytes)) == totals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lm_head.weight": None}, r"tensor lm_head\.weight is missing, weight head\.weight is made from it"),
        ({"lm_head.weight": np.zeros((64, 512), np.uint16)}, r"lm_head\.weight is \[64, 512\], .* \[512, 64\]"),
        ({"lm_head.weight": np.zeros((512, 64), np.int32)}, r"lm_head\.weight is I32, F32, F16 or BF16 was wanted"),
        ({"x": V, "lm_head.bias": V}, r"2 tensors have no place in LlamaForCausalLM: x, lm_head\.bias\n.*--ignore"),
        ({f"t{i}": V for i in range(7)}, r"7 tensors have no place.*: t0, t1, t2, t3, t4 and 2 more"),
    ],
)
def test_a_checkpoint_that_does_not_fit_the_graph_is_refused_before_writing(tmp_path, change, message):
    tensors = {name: array for name, array in (llama_tensors() | change).items() if array is not None}
    write_folder(tmp_path / "model", tensors)
    with pytest.raises(CheckpointError, match=message):
        convert(tmp_path / "model", tmp_path / "package")

    assert [tmp_path / "model"] == list(tmp_path.iterdir())


def test_a_tensor_that_is_named_may_be_left_out(tmp_path):
    write_folder(tmp_path / "model", llama_tensors() | {"vision.a": V, "vision.b": V})
    package = convert(tmp_path / "model", tmp_path / "package", Wanted(ignored=("vision.*",))).package

    assert not any("vision" in name for name in package.weights)


def test_copies_and_buffers_that_no_model_needs_are_left_out(tmp_path):
    config = {**LLAMA_CONFIG, "tie_word_embeddings": True}
    tensors = llama_tensors(config)
    copies = {"lm_head.weight": tensors["model.embed_tokens.weight"], "model.layers.0.self_attn.rotary_emb.inv_freq": V}
    write_folder(tmp_path / "model", tensors | copies, config)
    package = convert(tmp_path / "model", tmp_path / "package").package

    assert "embed.weight" in package.weights
    assert "head.weight" not in package.weights


def test_the_same_package_is_reused(tmp_path):
    convert(TINY / "llama", tmp_path / "package")
    before = (tmp_path / "package" / "trivet.json").stat().st_ino
    again = convert(TINY / "llama", tmp_path / "package")

    assert before == (tmp_path / "package" / "trivet.json").stat().st_ino
    assert () == again.steps
    assert source_digest(TINY / "llama") == again.package.source_digest


def test_another_package_is_replaced_only_when_asked(tmp_path):
    convert(TINY / "llama", tmp_path / "package", Wanted("float32", 0))

    with pytest.raises(CheckpointError, match=r"is another package: llama in float32 at level 0\n.*--force"):
        convert(TINY / "llama", tmp_path / "package")
    replaced = convert(TINY / "llama", tmp_path / "package", replace=True)

    assert "bfloat16" == replaced.package.dtype
    assert [tmp_path / "package"] == list(tmp_path.iterdir())


def test_a_package_is_not_converted_again(tmp_path):
    convert(TINY / "llama", tmp_path / "package")

    with pytest.raises(CheckpointError, match=r"is a package already\n.*trivet up "):
        convert(tmp_path / "package", tmp_path / "again")

    assert [tmp_path / "package"] == list(tmp_path.iterdir())


@pytest.mark.parametrize("is_forced", [False, True])
def test_what_is_not_a_package_is_never_replaced(tmp_path, is_forced):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "draft").write_text("dear")

    with pytest.raises(CheckpointError, match="exists and is not a package"):
        convert(TINY / "llama", tmp_path / "letters", replace=is_forced)

    assert "dear" == (tmp_path / "letters" / "draft").read_text()


def test_while_it_is_made_nothing_opens_as_a_package(tmp_path):
    opens = []

    def look(doing, done, total):
        opens.extend(folder for folder in (tmp_path, *tmp_path.rglob("*")) if is_package(folder))

    convert(TINY / "llama", tmp_path / "package", progress=look)

    assert [] == opens
    assert is_package(tmp_path / "package")


def test_a_folder_without_a_name_of_its_own_may_be_the_destination(tmp_path, monkeypatch):
    convert(TINY / "llama", tmp_path / "package", Wanted("float32"))
    monkeypatch.chdir(tmp_path / "package")
    convert(TINY / "llama", Path(), replace=True)

    assert "bfloat16" == open_package(tmp_path / "package").dtype
    assert [tmp_path / "package"] == list(tmp_path.iterdir())


def test_too_small_a_disk_is_known_before_writing(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(10_000, 5_000, 5_000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)

    with pytest.raises(ResourceError, match=r"4\.9 KiB free, the package needs \d+\.\d KiB\n.*TRIVET_CACHE"):
        convert(TINY / "llama", tmp_path / "package")
    assert [] == list(tmp_path.iterdir())


def test_a_checkpoint_is_only_read(tmp_path):
    source = shutil.copytree(TINY / "llama", tmp_path / "source")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in source.iterdir()}
    for path in source.iterdir():
        path.chmod(0o400)
    convert(source, tmp_path / "package")

    assert before == {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in source.iterdir()}


PEAK = """
import resource, sys
from pathlib import Path
from trivet.framework.model.config import published_config
from trivet.framework.model.convert import convert
from trivet.framework.model.package import open_package
from trivet.framework.model.steps import Wanted

Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
before = int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])
convert(sys.argv[1], Path(sys.argv[2]), Wanted(memory_bytes=0))
peak = int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
print(peak - before)
"""


def test_memory_does_not_grow_with_the_model(tmp_path):
    config = {**LLAMA_CONFIG, "vocab_size": 98304, "hidden_size": 1024, "tie_word_embeddings": True}
    tensors = llama_tensors({**config, "vocab_size": 1})
    tensors["model.embed_tokens.weight"] = np.zeros((98304, 0), np.uint16)
    sizes = {name: [98304, 1024] if "embed" in name else list(array.shape) for name, array in tensors.items()}
    header, end = {}, 0
    for name, shape in sizes.items():
        num_bytes = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    text = json.dumps(header).encode()
    write_folder(tmp_path / "model", {}, config)
    with (tmp_path / "model" / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    command = [sys.executable, "-c", PEAK, str(tmp_path / "model"), str(tmp_path / "package")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    grown_kib = int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

    assert end > 384 << 20
    assert grown_kib << 10 < 256 << 20


def test_other_engines_find_the_published_configuration_in_a_package(tmp_path):
    convert(TINY / "qwen3", tmp_path / "package", Wanted(dtype="float32"))
    published = json.loads((TINY / "qwen3" / "config.json").read_text())
    del published["dtype"]

    assert {**published, "torch_dtype": "float32"} == json.loads((tmp_path / "package" / "config.json").read_text())


def test_a_configuration_without_token_ids_gets_those_of_generation():
    document = {"model_type": "llama", "bos_token_id": 5}
    generation = {"bos_token_id": 1, "eos_token_id": [2, 3], "temperature": 0.6}

    assert {**document, "eos_token_id": [2, 3], "torch_dtype": "bfloat16"} == published_config(
        document, "bfloat16", generation
    )
