import csv
import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_capacity import SEVEN_B
from trivet.base.errors import TrivetError
from trivet.cli.replay import replay
from trivet.framework.engine.cost_model import CostModel, Rates
from trivet.framework.engine.replay.hit_rates import hit_rates
from trivet.framework.engine.replay.simulation import Simulation
from trivet.framework.engine.replay.trace import Arrival, read_trace
from trivet.framework.engine.targets import Targets
from trivet.framework.graph.cost import StepCost
from trivet.framework.memory.slots import SlotPool

TRACES = Path(__file__).parents[1] / "fixtures" / "traces"
COST = StepCost(body_bytes=100, head_bytes=10, context_bytes=1, token_flops=50, row_flops=5, attended_flops=1)
arrivals = st.lists(
    st.builds(Arrival, st.floats(0, 50), st.integers(1, 40), st.integers(1, 30), st.just(())), min_size=1, max_size=20
).map(lambda drawn: sorted(drawn, key=lambda each: each.at_s))


def simulated(pool, targets=None, max_running=4):
    costs = CostModel(COST, Rates(1e-3, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4))
    return Simulation(pool, costs, targets or Targets(), 60, 16, max_running)


@given(arrivals, st.integers(2, 20), st.sampled_from([4, 16]), st.none() | st.integers(1, 5))
def test_every_request_ends_or_is_refused_and_the_pool_is_whole(drawn, num_slots, slot_tokens, max_waiting):
    served = simulated(SlotPool(num_slots, slot_tokens), Targets(max_waiting=max_waiting)).run(drawn)

    assert len(drawn) == served.num_finished + served.num_refused + served.num_too_long
    assert all(0 <= share <= 1 for share in (served.allocation_success, served.internal_fragmentation, served.usage))


@given(arrivals)
def test_a_trace_replayed_twice_is_served_the_same(drawn):
    assert simulated(SlotPool(9, 4)).run(drawn) == simulated(SlotPool(9, 4)).run(drawn)


@given(arrivals)
def test_where_nothing_runs_out_how_the_pool_is_cut_changes_only_what_is_wasted(drawn):
    small, large = (simulated(SlotPool(4096 // size, size)).run(drawn) for size in (4, 64))

    assert (small.ttft_s, small.itl_s, small.num_steps) == (large.ttft_s, large.itl_s, large.num_steps)
    assert small.internal_fragmentation <= large.internal_fragmentation


def test_a_request_alone_has_the_times_that_the_model_predicts():
    served = simulated(SlotPool(20, 4)).run([Arrival(3.0, 16, 2)])
    # A step of 16 tokens, then one: step + layers + attention (bytes or pairs) + row + head.
    prefill_s = 1e-3 + 16 * 50e-4 + 136e-4 + 1e-4 + 10e-4
    decode_s = 1e-3 + 100e-4 + 17e-4 + 1e-4 + 10e-4

    assert prefill_s == pytest.approx(served.ttft_s["p50"])
    assert decode_s == pytest.approx(served.itl_s["p50"])
    assert 3 + prefill_s + decode_s == pytest.approx(served.duration_s)


def test_whole_contexts_keep_requests_waiting_that_slots_of_the_same_memory_do_not():
    burst = [Arrival(0.0, 10, 5) for _ in range(8)]
    slots = simulated(SlotPool(32, 4), max_running=8).run(burst)
    contexts = simulated(SlotPool(2, 64), max_running=8).run(burst)

    assert 1.0 == slots.allocation_success
    assert 0.25 >= contexts.allocation_success
    assert slots.internal_fragmentation < 0.25 < 0.75 < contexts.internal_fragmentation


def test_a_prefix_that_was_there_is_not_computed_again():
    asked = [Arrival(0.0, 1024, 1, (1, 2)), Arrival(5000.0, 1024, 1, (1, 2))]
    costs = CostModel(COST, Rates(1e-3, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4))
    served = Simulation(SlotPool(100, 16), costs, Targets(), 2048, 512, 4).run(asked)

    assert 1008 / 2048 == served.hit_rate  # of the second, all but the slot with its last token
    assert 3 == served.num_steps  # two for the first prompt, one for the rest of the second


@given(st.lists(st.lists(st.integers(0, 9), max_size=6, unique=True).map(tuple), max_size=30), st.integers(0, 10))
def test_a_larger_cache_never_finds_less(drawn, size):
    asked = [Arrival(0.0, 512 * max(1, len(blocks)), 1, tuple(blocks)) for blocks in drawn]
    rates = hit_rates(asked, [size, size + 1, None])

    assert rates[size] <= rates[size + 1] <= rates[None]


def test_azures_csv_and_mooncakes_lines_are_read_as_published():
    azure, mooncake = (read_trace(TRACES / name) for name in ("azure2023_code.csv", "mooncake_conversation.jsonl"))

    assert (Arrival(0.0, 4808, 10), 40) == (azure[0], len(azure))
    assert 0.052 == pytest.approx(azure[1].at_s)
    assert (6758, 500, tuple(range(14))) == (mooncake[0].num_prompt, mooncake[0].num_answer, mooncake[0].blocks)


def test_servegens_clients_are_drawn_the_same_each_time():
    drawn = read_trace(TRACES / "servegen")

    assert drawn == read_trace(TRACES / "servegen")
    assert drawn == sorted(drawn, key=lambda each: each.at_s)
    assert 0 < len(drawn)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,3,4\n"), ("a.jsonl", "{"), ("a.jsonl", '{"b": 1}\n'),
     ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n"), ("a.txt", "")],
)  # fmt: skip
def test_what_is_no_trace_is_refused_by_its_name(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(TrivetError, match=f"{name}"):
        read_trace(tmp_path / name)


def test_the_command_says_what_clients_would_see(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    asked = [str(TRACES / "azure2023_code.csv"), str(tmp_path / "config.json"), "--device", "910B3"]
    result = CliRunner().invoke(replay, [*asked, "--target-itl", "30", "--target-ttft", "2000", "--tier", "1GiB"])
    document = json.loads(CliRunner().invoke(replay, [*asked, "--json", "--requests", "10"]).stdout)

    assert 0 == result.exit_code, result.output
    assert "of 40 answered" in result.output
    assert "1.0 GiB would hold 0.0% of prompts' blocks" in result.output
    assert 10 == document["num_finished"] == document["num_requests"]


def test_the_benchmark_cuts_the_same_memory_four_ways(tmp_path, monkeypatch):
    path = Path(__file__).parents[2] / "benchmarks" / "replay.py"
    spec = importlib.util.spec_from_file_location("replay_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "replay.csv")
    result = CliRunner().invoke(module.replay, [str(TRACES / "azure2023_code.csv")])
    rows = list(csv.DictReader((tmp_path / "replay.csv").open()))

    assert 0 == result.exit_code, result.output
    assert ["slots of 2 MiB", "paged, 16", "paged, 128", "whole contexts"] == [row["cut"] for row in rows]
    assert 12 * 2**30 >= max(int(row["num_slots"]) * int(row["slot_tokens"]) * 57344 for row in rows)
