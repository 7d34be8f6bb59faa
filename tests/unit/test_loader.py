"""What a loaded model gets of the host's memory, and what is said when that is too little."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.system.tiny import FIXTURES
from trivet.base.errors import CheckpointError, ConfigError, ResourceError
from trivet.base.settings import Settings
from trivet.base.units import GIB, KIB, MIB
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.memory.arena import Arena
from trivet.framework.model import loader
from trivet.framework.model.loader import LoadedModel, load, open_model
from trivet.framework.model.manifest import ALIGNMENT

LLAMA = FIXTURES / "llama"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(cache_dir=tmp_path_factory.mktemp("cache"), api_key=None, cpu_target=None)


def load_with(available_bytes: int, settings: Settings, monkeypatch: pytest.MonkeyPatch, **options: int) -> LoadedModel:
    facts = read_placement_facts()
    small = replace(facts, memory=replace(facts.memory, available_bytes=available_bytes))
    monkeypatch.setattr(loader, "read_placement_facts", lambda: small)
    return load(LLAMA, settings=settings, **options)


def test_every_sequence_may_be_as_long_as_the_context_where_memory_allows(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_with(GIB, settings, monkeypatch, max_context=512, max_sequences=4)

    assert loaded.memory.kv_tokens >= 4 * 512
    assert loaded.memory.kv_bytes < GIB // 2


def test_a_smaller_host_gets_a_smaller_pool(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_with(16 * MIB, settings, monkeypatch, max_sequences=8)

    assert 4096 <= loaded.memory.kv_tokens < 8 * 4096


def test_too_little_for_one_sequence_names_the_context_that_would_fit(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ResourceError, match="one sequence of 4096 positions needs") as caught:
        load_with(4 * MIB, settings, monkeypatch)

    assert "--max-context" in str(caught.value)


def test_too_little_for_the_weights_says_so(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ResourceError, match="the weights need"):
        load_with(100 * KIB, settings, monkeypatch)


def test_a_load_reserves_weights_kv_cache_and_activations_and_nothing_beside(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved: dict[str, int] = {}
    make = Arena.__init__

    def counted(self: Arena, num_bytes: int, name: str, *arguments: object, **options: object) -> None:
        assert name not in reserved
        reserved[name] = num_bytes
        make(self, num_bytes, name, *arguments, **options)  # type: ignore[arg-type]

    open_model(LLAMA, settings=settings)  # what converting takes is no part of it
    monkeypatch.setattr(Arena, "__init__", counted)
    loaded = load(LLAMA, settings=settings, kv_memory=8 * MIB)
    memory = loaded.memory
    padding = len(loaded.package.weights) * ALIGNMENT

    assert {"weights", "KV pool", "activations"} == reserved.keys()
    assert memory.kv_bytes == reserved["KV pool"] <= 8 * MIB
    assert memory.activation_bytes == reserved["activations"]
    assert memory.weight_bytes <= reserved["weights"] <= memory.weight_bytes + padding


def test_a_start_from_a_package_imports_nothing_that_its_first_answer_does_not_need() -> None:
    program = "import sys, trivet.cli.serve, trivet.framework.model.loader, trivet.serve.server; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    converters = ("convert", "steps", "checkpoints.gguf", "checkpoints.torch_zip", "verification", "jinja_template")
    rarely = ("model.loading.staging", "engine.lane_choice", "graph.side_by_side", "graph.profile")
    doctors = ("facts", "npu_facts", "stack_facts", "probe_facts", "readers.host", "readers.captured")

    assert set() == {f"trivet.framework.model.{name}" for name in converters} & set(printed.split())
    assert set() == {f"trivet.framework.{name}" for name in rarely} & set(printed.split())
    assert set() == {f"trivet.driver.{name}" for name in doctors} & set(printed.split())
    assert {"trivet.operators.verify", "jinja2", "prometheus_client", "torch"}.isdisjoint(printed.split())


def test_a_checkpoint_is_converted_once_and_found_again(settings: Settings) -> None:
    first = open_model(LLAMA, settings=settings)
    written = (first.path / "trivet.json").stat().st_mtime_ns
    again = open_model(LLAMA, settings=settings)

    assert first.path == again.path
    assert written == (again.path / "trivet.json").stat().st_mtime_ns


def test_each_precision_has_a_package_of_its_own(settings: Settings) -> None:
    paths = {open_model(LLAMA, dtype=dtype, settings=settings).path for dtype in ("bfloat16", "float32")}

    assert len(paths) == 2


def test_weights_in_int8_have_a_package_of_their_own_half_the_size_and_are_found_again(settings: Settings) -> None:
    whole, small = open_model(LLAMA, settings=settings), open_model(LLAMA, weights="int8", settings=settings)
    matrices = [str(node.inputs[1]) for node in small.graph.nodes if node.operator == "linear"]

    assert {"int8"} == {small.graph.values[name].dtype for name in matrices}
    assert small.weight_bytes < 0.6 * whole.weight_bytes
    assert small.path == open_model(small.path, weights="int8", settings=settings).path
    assert small.path == open_model(small.path, settings=settings).path


def test_a_cache_in_int8_needs_no_other_package_and_holds_more_tokens(settings: Settings) -> None:
    whole, small = (
        load(LLAMA, settings=settings, kv_dtype=kv_dtype, kv_memory=32 * MIB) for kv_dtype in (None, "int8")
    )  # type: ignore[misc]

    assert whole.package.path == small.package.path
    assert {"int8"} == {small.package.graph.values[stream.name].dtype for stream in small.package.graph.streams}
    assert 1.7 * whole.memory.kv_tokens < small.memory.kv_tokens  # its heads are of 16, a scale for each
    for loaded in (whole, small):
        loaded.plan.close()


def test_a_device_that_keeps_no_cache_in_int8_is_refused_before_anything_is_read(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="--kv-dtype int8: npu keeps its KV cache in float32 or bfloat16"):
        open_model("nowhere", device="npu", kv_dtype="int8", settings=settings)


def test_a_package_that_is_not_in_the_weights_asked_for_is_refused(settings: Settings) -> None:
    package: Path = open_model(LLAMA, settings=settings).path
    with pytest.raises(CheckpointError, match="whose weights are in bfloat16, int8 was asked for"):
        open_model(package, weights="int8", settings=settings)


def test_a_package_in_another_precision_than_asked_for_is_refused(settings: Settings) -> None:
    package: Path = open_model(LLAMA, dtype="bfloat16", settings=settings).path
    with pytest.raises(
        CheckpointError, match=r"is a package in bfloat16, float32 was asked for\n.*give the checkpoint"
    ):
        open_model(package, dtype="float32", settings=settings)
