"""The loader for vLLM gives its models what the files hold, says what is wrong, and costs nothing where unasked."""

import logging
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
from pretend_vllm import LOADERS, LoadConfig, Model, ModelConfig, get_model_loader, modules
from small_model import TINY, write_folder

from trivet.base.dtypes import cast
from trivet.base.errors import CheckpointError, ConfigError
from trivet.base.units import MIB
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.framework.model.convert import convert
from trivet.framework.model.loading.read import ExtentReport, ReadReport
from trivet.framework.model.loading.report import LoadReport
from trivet.framework.model.loading.storage_limit import StorageLimit
from trivet.framework.model.steps import Wanted

HERE = Path(__file__).parent


FAMILIES = ("llama", "qwen2", "qwen3")
ASKED = {
    "panels": Wanted(),
    "rows": Wanted(target="torch"),
    "float32": Wanted(dtype="float32"),
    "unmerged": Wanted(level=0),
    "int8": Wanted(matrices="int8"),
    "shards": Wanted(shard_bytes=100_000),
}


@pytest.fixture(scope="module", params=[(family, name) for family in FAMILIES for name in ASKED], ids="-".join)
def package(request, tmp_path_factory):
    """A checkpoint and its package, made while PyTorch is what it is."""
    family, name = request.param
    return TINY / family, convert(TINY / family, tmp_path_factory.mktemp(family) / name, ASKED[name]).package


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    """A pretended vLLM with our plugin, and nothing of either afterwards."""
    ours = ("loader", "folder", "weights")
    pretended = modules()
    for name, module in pretended.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ours:
        monkeypatch.delitem(sys.modules, f"trivet.serve.vllm.{name}", raising=False)
    (plugin,) = entry_points(group="vllm.general_plugins", name="trivet")
    plugin.load()()
    yield pretended
    LOADERS.clear()
    for name in ours:
        sys.modules.pop(f"trivet.serve.vllm.{name}", None)


def published(folder):
    """Every tensor of a checkpoint as it was stored, bfloat16 bits."""
    checkpoint = open_checkpoint(folder)
    return {name: checkpoint.read_rows(name, 0, entry.shape[0]) for name, entry in checkpoint.tensors.items()}


def load(folder, *, parameters=(), quantization=None, model=None, **options):
    model = model or Model(list(parameters))
    loader = get_model_loader(LoadConfig(model_loader_extra_config=options))
    loader.load_weights(model, ModelConfig(str(folder), quantization=quantization))
    return model.got


@pytest.mark.parametrize("family", FAMILIES)
def test_a_published_checkpoint_arrives_as_it_is_stored(family):
    wanted = published(TINY / family)
    got = load(TINY / family, parameters=wanted)

    assert wanted.keys() == got.keys()
    for name, (rows, _) in wanted.items():
        np.testing.assert_array_equal(rows, got[name])


def test_a_package_gives_back_the_tensors_that_it_was_made_from(package):
    source, made = package
    wanted = published(source)
    got = load(made.path, parameters=wanted)

    assert wanted.keys() == got.keys()
    for name, (rows, dtype) in wanted.items():
        kept = next(recipe.dtype for recipe in made.graph.weights.values() for source in recipe.sources
                    if source.tensor == name)  # fmt: skip
        stored = cast(rows, dtype, kept)
        np.testing.assert_array_equal(cast(stored, "int8", "float32") if kept == "int8" else stored, got[name])


def test_numbers_that_no_graph_here_knows_arrive_too_wherever_they_lie(tmp_path):
    tensors = {
        "odd": np.arange(3, dtype=np.int8),  # what follows it lies at an odd address
        "words": np.arange(6, dtype=np.int32).reshape(2, 3),
        "halves": np.linspace(0, 1, 5).astype(np.float16),
        "scales": np.arange(4, dtype=np.uint8),  # e4m3
        "none": np.zeros((0, 4), np.float32),
        "one": np.array(2.5, np.float32),
    }
    got = load(write_folder(tmp_path, tensors), parameters=tensors)

    assert tensors.keys() == got.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(array, got[name])


def test_a_format_that_pytorch_has_not_is_refused(vllm, tmp_path):
    del vllm["torch"].float8_e4m3fn
    folder = write_folder(tmp_path, {"scales": np.arange(4, dtype=np.uint8)})
    with pytest.raises(CheckpointError, match="scales is F8_E4M3, which this PyTorch"):
        load(folder)


def test_a_changed_byte_of_a_package_is_found_unless_nobody_wants_to_know(tmp_path):
    package = convert(TINY / "llama", tmp_path / "package").package
    name = next(name for name, recipe in package.graph.weights.items() if recipe.sources)
    stored = package.stored[name]
    with (package.path / stored.shard).open("r+b") as file:
        file.seek(stored.offset)
        file.write(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=f"tensor {name} at byte {stored.offset} has the checksum"):
        load(package.path)

    assert published(TINY / "llama").keys() == load(package.path, verify=False).keys()


def test_a_package_cut_for_ranks_is_refused(tmp_path):
    convert(TINY / "llama", tmp_path / "package", Wanted(num_ranks=2))
    with pytest.raises(CheckpointError, match="cut for 2 tensor-parallel ranks"):
        load(tmp_path / "package")


def test_what_is_no_folder_of_safetensors_is_refused(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"model\.gguf is not a folder of safetensors"):
        load(tmp_path / "model.gguf")


def test_a_tensor_in_two_files_is_refused(tmp_path):
    folder = write_folder(tmp_path, {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)})
    (folder / "model.safetensors").rename(folder / "x.safetensors")
    (folder / "y.safetensors").write_bytes((folder / "x.safetensors").read_bytes())
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}')
    with pytest.raises(CheckpointError, match=r"tensor a is in two files, the second is y\.safetensors"):
        load(folder)


@pytest.mark.parametrize(
    ("parameters", "quantization", "message"),
    [
        (["a", "b"], None, "nothing in it is for 1 parameters of Model: b"),
        (["a", "attn.k_scale"], None, None),  # has a default
        (["a", "b"], "awq", None),  # whose parameters have other names than its tensors
        (["a"], "torchao", "torchao is read by vLLM's own loaders only"),
    ],
)
def test_a_parameter_without_numbers_is_an_error(parameters, quantization, message, tmp_path):
    folder = write_folder(tmp_path, {"a": np.zeros(2, np.float32)})
    if message is None:
        assert {"a"} == load(folder, parameters=parameters, quantization=quantization).keys()
        return
    with pytest.raises(CheckpointError, match=message):
        load(folder, parameters=parameters, quantization=quantization)


def test_a_model_that_takes_weights_from_elsewhere_as_well_is_refused():
    model = Model([])
    model.secondary_weights = ["whisper"]
    with pytest.raises(CheckpointError, match=r"Model takes weights from other files .* \(secondary_weights\)"):
        load(TINY / "llama", model=model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verfy": False}, "verfy is not known to --load-format trivet\n  → it knows verify, engine, threads"),
        ({"verify": 0}, "verify is 0, true or false was wanted"),
        ({"engine": "mmap"}, "engine is 'mmap', one of io_uring, direct, buffered, mapped was wanted"),
        ({"threads": 0}, "threads is 0, a number above 0 was wanted"),
        ({"threads": True}, "threads is True, a number above 0 was wanted"),
        ("fast", "'fast' was given, a JSON object was wanted"),
    ],
)
def test_an_option_that_there_is_not_is_an_error_before_anything_is_read(options, message):
    with pytest.raises(ConfigError) as error:
        get_model_loader(LoadConfig(model_loader_extra_config=options))

    assert f"--model-loader-extra-config: {message}" == str(error.value)


@pytest.mark.parametrize(("num_ranks", "options", "engine"), [
    (1, {"engine": "buffered"}, "buffered"),
    (4, {}, "buffered"),  # the page cache gives the bytes to all ranks, the storage once
])  # fmt: skip
def test_the_log_says_how_the_files_were_read(vllm, caplog, num_ranks, options, engine):
    vllm["torch"].distributed.get_world_size = lambda: num_ranks
    caplog.set_level(logging.INFO, logger="vllm.trivet")
    load(TINY / "llama", **options)
    (said,) = [record.getMessage() for record in caplog.records]

    assert said.startswith("event=load model=llama ")
    assert f"by {engine} (" in said
    assert (num_ranks > 1) == (f"ranks={num_ranks}" in said)


def test_the_line_of_a_load():
    from trivet.serve.vllm.weights import line

    extent = ExtentReport(Path("m"), 300 * MIB, "ext4", 0.0, "io_uring", "it is not in the page cache", 0, 1, 0)
    read = ReadReport(300 * MIB, 0.1, 0.2, 0.1, 300 * MIB, (extent,), 300 * MIB)
    limit = StorageLimit(3.2e9, "io_uring", "2026-01-01T00:00:00+00:00")
    phases = {"open": 0.1, "read": 0.3, "copying into the model": 0.1}
    report = LoadReport("m", phases, read, 0.2, 600 * MIB, None, 2, limit)

    assert (
        'event=load model=m size="300.0 MiB" seconds=0.50 read_gb_per_s=3.15 share_of_storage="98%" '
        'waited_for_bytes="300.0 ms" verified="300.0 MiB" engine="300.0 MiB by io_uring (it is not in the page cache)" '
        'bottleneck="the storage: 98% of its best" peak_memory="600.0 MiB"'
    ) == line(report, 1)


def test_a_name_on_a_hub_is_fetched_by_vllm(vllm, monkeypatch):
    utils, asked = vllm["vllm.model_executor.model_loader.weight_utils"], []
    monkeypatch.setattr(
        utils, "download_weights_from_hf", lambda *args, **rest: asked.append((args, rest)) or str(TINY / "llama")
    )
    monkeypatch.setattr(
        utils, "download_safetensors_index_file_from_hf", lambda *args, **rest: asked.append((args, rest))
    )
    loader = get_model_loader(LoadConfig(download_dir="/models"))
    loader.download_model(ModelConfig("publisher/llama", revision="v2"))
    loader.load_weights(model := Model([]), ModelConfig("publisher/llama", revision="v2"))

    assert published(TINY / "llama").keys() == model.got.keys()
    assert [
        (("publisher/llama", "/models", ["*.safetensors"], "v2"), {"ignore_patterns": ["original/**/*"]}),
        (("publisher/llama", "model.safetensors.index.json", "/models"), {"revision": "v2"}),
    ] * 2 == asked


def test_a_model_from_modelscope_is_where_vllm_put_it(vllm, monkeypatch):
    utils = vllm["vllm.model_executor.model_loader.weight_utils"]
    monkeypatch.setattr(utils, "maybe_download_from_modelscope", lambda model, revision: str(TINY / "qwen3"))

    assert published(TINY / "qwen3").keys() == load("publisher/qwen3").keys()


@pytest.mark.parametrize("lacks", ["vllm.model_executor.model_loader", "vllm.model_executor.model_loader.base_loader"])
def test_a_vllm_that_takes_no_loaders_starts_without_ours(lacks, monkeypatch, caplog):
    LOADERS.clear()
    monkeypatch.setitem(sys.modules, lacks, None)
    monkeypatch.delitem(sys.modules, "trivet.serve.vllm.loader", raising=False)
    (plugin,) = entry_points(group="vllm.general_plugins", name="trivet")
    plugin.load()()

    assert {} == LOADERS
    assert "--load-format trivet is not there" in caplog.text


def test_a_process_that_does_not_ask_for_the_loader_imports_nothing_for_it():
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import pretend_vllm
sys.modules.update(pretend_vllm.modules())
before = set(sys.modules)
from trivet.serve.vllm.plugin import register
register()
assert "trivet" in pretend_vllm.LOADERS
print(*sorted(name for name in set(sys.modules) - before if name.startswith("trivet")))
"""
    done = subprocess.run([sys.executable, "-c", program, str(HERE)], capture_output=True, text=True, check=True)

    wanted = ["", ".serve", ".serve.vllm", ".serve.vllm.loader", ".serve.vllm.plugin"]
    assert [f"trivet{name}" for name in wanted] == done.stdout.split()
