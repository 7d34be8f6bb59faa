import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.small_model import LLAMA_CONFIG
from trivet.base.errors import ConfigError, ResourceError
from trivet.base.units import GIB, MIB
from trivet.cli.plan import plan
from trivet.driver.devices.soc import soc_named, socs
from trivet.framework.engine.capacity import Room, capacity, room_of
from trivet.framework.graph.side_by_side import side_by_side
from trivet.framework.model.config import parse_config
from trivet.framework.model.loader import load, model_graph
from trivet.operators.kv_layout import BLOCK_TOKENS
from trivet.serve.bench.shapes import SHAPES

SEVEN_B = {**SHAPES["qwen2.5-7b"], "max_position_embeddings": 32768}


@pytest.fixture(scope="module")
def graph():
    return model_graph(parse_config(LLAMA_CONFIG), "bfloat16")


def test_the_budget_is_what_loading_reserves():
    loaded = load("tests/fixtures/tiny/llama", max_context=256, max_sequences=3, max_step_tokens=64, kv_memory=64 * MIB)
    room = Room("here", GIB, None, None)
    found = capacity(loaded.package.graph, room, 256, 3, 64)

    assert loaded.memory.weight_bytes == found.weight_bytes
    assert loaded.memory.activation_bytes == found.activation_bytes
    assert loaded.memory.slot_tokens == found.slot_tokens


def test_the_budget_of_two_lanes_is_what_both_reserve():
    loaded = load("tests/fixtures/tiny/llama", max_context=256, max_sequences=3, max_step_tokens=64, kv_memory=64 * MIB)
    lanes = side_by_side(loaded.plan, [None, None], 1)
    found = capacity(loaded.package.graph, Room("here", GIB, None, None), 256, 3, 64, num_lanes=2)

    assert loaded.memory.activation_bytes + lanes.activation_bytes == found.activation_bytes


def test_lanes_of_a_chip_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    result = CliRunner().invoke(plan, [str(tmp_path / "config.json"), "--device", "910B3", "--lanes", "2"])

    assert isinstance(result.exception, ResourceError)
    assert "only a CPU's cores" in result.exception.message


def test_the_command_that_starts_a_plan_says_all_that_was_planned_with(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    asked = ["--device", "910B3", "--dtype", "float32", "--context", "4096", "--max-step-tokens", "256"]
    printed = CliRunner().invoke(plan, [str(tmp_path / "config.json"), *asked]).output

    start = "trivet up MODEL --device npu --dtype float32 --max-context 4096 --max-sequences 1 --max-step-tokens 256"
    assert f"start        {start} --kv-memory 448MiB" == printed.splitlines()[-1]


def test_a_7b_model_has_the_weights_and_the_cache_that_its_sizes_say():
    graph = model_graph(parse_config(SEVEN_B), "bfloat16", device="npu")
    found = capacity(graph, room_of(soc_named("910B3"), 128), 8192, 16, 512)

    assert 7.6e9 == pytest.approx(found.weight_bytes / 2, rel=0.01)
    assert 28 * 2 * 4 * 128 * 2 == found.kv_token_bytes
    assert 16 * 8192 * found.kv_token_bytes == found.kv_bytes
    assert found.speed is not None and "reading weights" == found.speed.decode_bound


def test_a_cache_in_int8_has_room_for_nearly_twice_the_tokens_and_reads_half_the_bytes():
    config, room = parse_config(SEVEN_B), Room("pretended", 64 * GIB, 1e12, 1e14)
    whole, small = (
        capacity(model_graph(config, "bfloat16", kv_dtype=kv_dtype), room, 8192, 64, 512) for kv_dtype in (None, "int8")
    )

    assert 28 * 2 * 4 * (128 + 2 * 2) == small.kv_token_bytes
    assert whole.weight_bytes == small.weight_bytes
    assert 1.9 * whole.slot_tokens <= small.slot_tokens + BLOCK_TOKENS
    assert 1.9 * whole.max_concurrency <= small.max_concurrency
    assert small.speed.decode_s < whole.speed.decode_s


@given(st.integers(1, 64 * MIB), st.integers(1, 4096), st.integers(1, 64))
def test_what_is_said_to_fit_fits_and_one_more_does_not(graph, memory_bytes, context, concurrency):
    found = capacity(graph, Room("pretended", memory_bytes, None, None), context, concurrency, 64)

    def kv_bytes(sequences, positions):
        return capacity(graph, Room("pretended", memory_bytes, None, None), positions, sequences, 64).kv_bytes

    if found.max_concurrency:
        assert kv_bytes(found.max_concurrency, context) <= found.kv_room_bytes
    assert kv_bytes(found.max_concurrency + 1, context) > found.kv_room_bytes
    if found.max_context:
        assert kv_bytes(concurrency, found.max_context) <= found.kv_room_bytes
    assert kv_bytes(concurrency, found.max_context + BLOCK_TOKENS * 4096) > found.kv_room_bytes


def test_too_small_names_the_knobs_that_make_it_fit(graph):
    room = Room("a small one", 12 * MIB, None, None)
    found = capacity(graph, room, 4096, 64, 64)
    with pytest.raises(ResourceError, match=r"64 sequences of 4096 positions need .* a small one has 12.0 MiB") as said:
        found.check(room, 4096, 64)

    assert f"--concurrency {found.max_concurrency}" in (said.value.hint or "")


def test_every_chip_of_the_table_has_memory_operations_and_a_source():
    assert 59 == len(socs())
    for soc in socs().values():
        assert 8 * GIB < soc.memory_bytes < 256 * GIB
        assert 3e13 < soc.flops_per_s < 1e15
        assert soc.bytes_per_s is None or 1e11 < soc.bytes_per_s < 1e13
        assert any("CANN" in source or "platform_config" in source for source in soc.sources)


@pytest.mark.parametrize("name", ["910B3", "Ascend910B3", "ascend910b3"])
def test_a_chip_is_found_by_its_name_however_written(name):
    assert "Ascend910B3" == soc_named(name).name


def test_the_name_910b_alone_is_the_first_generation_and_says_so(tmp_path):
    assert "1st-gen" in soc_named("910B").family


def test_a_chip_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(ResourceError, match="--device 910B9") as said:
        soc_named("910B9")

    assert "Ascend910B" in (said.value.hint or "")


def test_the_command_plans_a_config_alone(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    asked = [str(tmp_path / "config.json"), "--device", "910B3", "--context", "8192", "--concurrency", "16"]
    result = CliRunner().invoke(plan, asked)

    assert 0 == result.exit_code, result.output
    assert "--device npu --max-context 8192 --max-sequences 16" in result.output
    assert "bound by reading weights" in result.output
    document = json.loads(CliRunner().invoke(plan, [*asked, "--json"]).stdout)
    assert 15.2e9 == pytest.approx(document["budget"]["weight_bytes"], rel=0.01)


def test_a_chip_without_bfloat16_is_refused_for_it(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    result = CliRunner().invoke(plan, [str(tmp_path / "config.json"), "--device", "310P3"])

    assert isinstance(result.exception, ResourceError)
    assert "--dtype float32" == result.exception.hint


def test_the_command_plans_a_cache_in_int8_for_the_cpu_and_refuses_it_for_a_chip(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    monkeypatch.setattr("trivet.cli.plan.host_room", lambda _: Room("pretended", 64 * GIB, 1e12, 1e14))
    asked = [str(tmp_path / "config.json"), "--kv-dtype", "int8"]
    result = CliRunner().invoke(plan, asked)
    refused = CliRunner().invoke(plan, [*asked, "--device", "910B3"])

    assert "bfloat16, KV cache in int8" in result.output
    assert "--kv-dtype int8 --max-context" in result.output
    assert isinstance(refused.exception, ConfigError)
    assert "--kv-dtype int8: npu keeps its KV cache in float32 or bfloat16" == refused.exception.message
