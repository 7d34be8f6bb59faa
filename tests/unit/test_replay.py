import csv
import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.system.tiny import cpu_plan
from tests.unit.test_capacity import SEVEN_B
from trivet.base.errors import TrivetError
from trivet.cli.replay import replay
from trivet.framework.engine.cost_model import CostModel, Rates, calibrated
from trivet.framework.engine.kv_pool import kv_pool
from trivet.framework.engine.replay.compared import compare
from trivet.framework.engine.replay.hit_rates import hit_rates, size_for
from trivet.framework.engine.replay.prompts import prompt_of
from trivet.framework.engine.replay.simulation import Simulation
from trivet.framework.engine.replay.trace import Arrival, read_trace, scaled
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
    ("line", "why"),
    [('{"timestamp": 1e999, "input_length": 1, "output_length": 1, "hash_ids": []}', "its time is inf"),
     ('{"timestamp": 1, "input_length": 1e999, "output_length": 1, "hash_ids": []}', "infinity"),
     ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [[]]}', "not 'list'"),
     ('{"timestamp": 1, "input_length": 1, "hash_ids": []}', "output_length is missing")],
)  # fmt: skip
def test_a_line_of_a_trace_that_cannot_be_served_is_named(tmp_path, line, why):
    good = '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []}'
    (tmp_path / "a.jsonl").write_text(f"{good}\n{line}\n")

    with pytest.raises(TrivetError, match=rf"a\.jsonl, line 2 is not of the format: .*{why}"):
        read_trace(tmp_path / "a.jsonl")


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
    result = CliRunner().invoke(replay, [*asked, "--target-itl", "30", "--target-ttft", "2000"])
    document = json.loads(CliRunner().invoke(replay, [*asked, "--json", "--requests", "10"]).stdout)

    assert 0 == result.exit_code, result.output
    assert "of 40 answered" in result.output
    assert "with tiers" not in result.output
    assert "best tier" not in result.output  # nothing in common, so no size is better than none
    assert 10 == document["num_finished"] == document["num_requests"]


def test_the_command_names_the_tier_that_is_large_enough(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    asked = [str(TRACES / "mooncake_conversation.jsonl"), str(tmp_path / "config.json"), "--device", "910B3"]
    result = CliRunner().invoke(replay, asked)
    document = json.loads(CliRunner().invoke(replay, [*asked, "--json"]).stdout)

    assert f"would hold 90% of the {document['any_tier_hit_rate']:.1%} of prompts' blocks that any" in result.output
    assert 0 == document["best_tier_bytes"] % (512 * 57344) < document["best_tier_bytes"]


def rows_of(name, arguments, folder, monkeypatch):
    """What the benchmark of that name writes."""
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", folder / f"{name}.csv")
    result = CliRunner().invoke(getattr(module, name), arguments)
    assert 0 == result.exit_code, result.output
    return list(csv.DictReader((folder / f"{name}.csv").open()))


def test_the_benchmark_of_reclaiming_asks_the_same_of_both_policies(tmp_path, monkeypatch):
    rows = rows_of("reclaim", [str(TRACES / "mooncake_conversation.jsonl")], tmp_path, monkeypatch)

    assert ["cost", "lru"] * 6 == [row["reclaim"] for row in rows]
    assert all(0 < float(row["hit_rate"]) < 1 for row in rows)


def test_the_benchmark_of_tiers_has_a_row_for_each_and_asks_all_of_them_the_same(tmp_path, monkeypatch):
    rows = rows_of("replay_tiers", [str(TRACES / "mooncake_conversation.jsonl")], tmp_path, monkeypatch)

    assert ["0", "64", "256", "64", "64"] == [row["host_gib"] for row in rows]
    assert ["0", "0", "0", "1024", "1024"] == [row["files_gib"] for row in rows]
    assert 1 == len({(row["requests"], row["finished"]) for row in rows})


def test_the_benchmark_of_the_real_thing_has_each_figure_measured_and_foretold(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIVET_CACHE", str(tmp_path))
    tiny = Path(__file__).parents[1] / "fixtures" / "tiny" / "llama"
    options = ["--scale", "64", "--requests", "3", "--context", "256", "--kv-memory", "8"]
    (row,) = rows_of("replay_real", [str(tiny), str(TRACES / "azure2023_code.csv"), *options], tmp_path, monkeypatch)

    assert "3" == row["answered"]
    assert all(float(row[f"ttft_p50_{what}"]) > 0 for what in ("s", "predicted_s"))


def test_the_benchmark_cuts_the_same_memory_four_ways(tmp_path, monkeypatch):
    rows = rows_of("replay", [str(TRACES / "azure2023_code.csv")], tmp_path, monkeypatch)

    assert ["cost", "lru", "lru", "lru", "lru"] == [row["reclaim"] for row in rows]
    assert ["slots of 2 MiB", "paged, 16", "paged, 128", "whole contexts"] == [row["cut"] for row in rows[1:]]
    assert 12 * 2**30 >= max(int(row["num_slots"]) * int(row["slot_tokens"]) * 57344 for row in rows)


@given(st.lists(st.lists(st.integers(0, 9), max_size=6, unique=True).map(tuple), max_size=20), st.floats(0, 1))
def test_the_best_size_finds_that_share_and_the_next_smaller_does_not(drawn, share):
    asked = [Arrival(0.0, 512 * max(1, len(blocks)), 1, blocks) for blocks in drawn]
    size = size_for(asked, share)
    rates = hit_rates(asked, [size, max(0, size - 1), None])

    assert rates[size] >= share * rates[None]
    assert size == 0 or rates[size - 1] < share * rates[None]


def test_of_a_prompt_the_end_goes_before_the_beginning():
    asked = [Arrival(0.0, 1536, 1, (1, 2, 3)), Arrival(0.0, 512, 1, (9,)), Arrival(0.0, 1536, 1, (1, 2, 3))]

    assert {3: 2 / 7} == hit_rates(asked, [3])


def test_giving_up_by_cost_spares_a_long_prompt_that_many_short_ones_would_have_pushed_out():
    long = Arrival(0.0, 5120, 1, tuple(range(10)))
    short = [Arrival(1000.0 + 100 * number, 512, 1, (100 + number,)) for number in range(8)]
    again = Arrival(9000.0, 5120, 1, tuple(range(10)))
    costs = CostModel(COST, Rates(1e-3, 1e-4, 1e-4, 1e-6, 1e-4, 1e-6))
    saved = {}
    for reclaim in ("cost", "lru"):
        pool = kv_pool(12, 512, costs, reclaim)
        served = Simulation(pool, costs, Targets(), 8192, 8192, 4).run([long, *short, again])
        saved[reclaim] = served.saved

    assert saved["cost"] > 0.38  # nine blocks of ten
    assert saved["lru"] < 0.1  # four


@given(arrivals, st.sampled_from([1, 2, 64, 512]))
def test_what_is_scaled_down_has_the_same_in_common(drawn, scale):
    drawn = [replace(each, blocks=(1, 2)) for each in drawn]
    small = scaled(drawn, scale, 2.0)

    assert all(0 < each.num_prompt <= before.num_prompt for each, before in zip(small, drawn, strict=True))
    assert {512 // scale} == {each.block_tokens for each in small}
    assert [each.at_s for each in drawn] == pytest.approx([2 * each.at_s for each in small])


@given(st.integers(0, 9), st.integers(1, 40), st.lists(st.integers(0, 9), max_size=4).map(tuple))
def test_prompts_have_in_common_what_the_trace_says_and_are_as_long(block, num_prompt, blocks):
    one, other = (Arrival(0.0, num_prompt, 1, (block, *blocks), 8) for _ in range(2))
    prompts = [prompt_of(one, 1, 50), prompt_of(other, 2, 50)]
    num_shared = min(num_prompt, 8 * (1 + len(blocks)))

    assert [num_prompt] * 2 == [len(prompt) for prompt in prompts]
    assert prompts[0][:num_shared] == prompts[1][:num_shared]
    assert all(3 <= token < 50 for prompt in prompts for token in prompt)


def test_a_trace_is_served_and_foretold_and_the_errors_are_shares_of_what_was_measured():
    plan = cpu_plan("llama", "float32", num_slots=24)
    asked = [Arrival(0.0, 40, 5, (1,), 32), Arrival(0.01, 40, 4, (1,), 32), Arrival(0.0, 900, 5)]
    found = compare(plan, calibrated(plan), asked)

    assert 2 == found.predicted.num_answered == found.measured.num_answered  # the third is too long
    assert {f"{name}_{figure}" for name in ("ttft_s", "itl_s") for figure in ("p50", "p90", "p99", "sd")} == set(
        found.errors()
    )
    ttft_s = found.predicted.ttft_s["p50"], found.measured.ttft_s["p50"]
    assert ttft_s[0] / ttft_s[1] - 1 == pytest.approx(found.errors()["ttft_s_p50"])
    assert 0 < ttft_s[1] < found.measured.duration_s


def test_the_command_serves_a_scaled_trace_here_and_says_how_far_off_it_was(monkeypatch, tmp_path):
    monkeypatch.setenv("TRIVET_CACHE", str(tmp_path))
    tiny = Path(__file__).parents[1] / "fixtures" / "tiny" / "llama"
    asked = [str(TRACES / "azure2023_code.csv"), str(tiny), "--real", "--scale", "64", "--requests", "5"]
    options = ["--kv-memory", "8MiB", "--context", "256"]
    told = CliRunner().invoke(replay, [*asked, *options])
    document = json.loads(CliRunner().invoke(replay, [*asked, *options, "--json"]).stdout)

    assert "first token  p99 " in told.output, told.output
    assert 5 == document["measured"]["num_answered"] == document["predicted"]["num_answered"]
    with pytest.raises(TrivetError, match="--real takes no --device"):
        CliRunner().invoke(replay, [*asked, "--device", "910B3"], catch_exceptions=False)
