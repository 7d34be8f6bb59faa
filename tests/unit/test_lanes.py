import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.system.tiny import FIXTURES, cpu_plan
from tests.unit.pretend_air import Air
from tests.unit.pretend_plan import PretendPlan
from trivet.base.errors import ResourceError
from trivet.cli.bench_lanes import bench_lanes
from trivet.framework.engine.cost_model import CostModel, Rates
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.lane_choice import (
    Measured,
    _most_beside,
    choose_lanes,
    judge,
    measure,
    measured_choice,
    splits_of,
)  # fmt: skip
from trivet.framework.engine.metrics import EngineMetrics
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import Request
from trivet.framework.engine.step_times import StepTimes
from trivet.framework.graph.cost import StepCost
from trivet.framework.graph.cpu_plan import activation_bytes
from trivet.framework.graph.plan import Limits, decode_limits
from trivet.framework.graph.side_by_side import SideBySide, side_by_side

COST = StepCost(body_bytes=100, head_bytes=10, context_bytes=3, token_flops=50, row_flops=5, attended_flops=2)
LABELS = {"model_name": "tiny", "engine": "0"}


class TwoLanes:
    """An engine whose prefill flies until it is told to land."""

    def __init__(self, num_slots=16, **options):
        self.plan = PretendPlan(num_slots)
        self.decodes, self.prefills = self.plan.beside(8), self.plan.beside(32)
        self.engine = Engine(self.plan, None, lanes=SideBySide(self.decodes, self.prefills, (), ()), **options)
        self.air = Air()
        self.air.replace_thread_of(self.engine)

    def add(self, name, num_prompt, max_tokens=20):
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self.engine.add(Request(name, tuple(3 + i % 20 for i in range(num_prompt)), params, 0))

    def step(self):
        """Who got a token."""
        return [delta.request_id for delta in self.engine.step() if delta.token_ids]

    def num_steps(self):
        return [len(plan.batches) for plan in (self.plan, self.decodes, self.prefills)]


def decoding(**options):
    """Two lanes with a sequence that decodes."""
    lanes = TwoLanes(**options)
    lanes.add("a", 3)
    assert ["a"] == lanes.step()
    return lanes


def test_a_decode_moves_on_in_every_step_while_a_prompt_flies_and_the_prompt_lands_when_it_is_done():
    lanes = decoding()
    lanes.add("b", 18)

    assert [["a"], ["a"], ["a"]] == [lanes.step() for _ in range(3)]
    lanes.air.is_due = True
    assert ["b", "a", "b"] == lanes.step()  # its first token, and the next, on all cores again
    assert [2, 3, 1] == lanes.num_steps()


def test_nothing_flies_where_nobody_decodes_and_all_cores_step_where_nothing_flies():
    lanes = TwoLanes()
    lanes.add("a", 40)
    for _ in range(4):
        lanes.step()

    assert [4, 0, 0] == lanes.num_steps()


def test_a_prompt_lands_at_once_when_the_decodes_beside_it_have_ended():
    lanes = decoding()
    lanes.add("b", 18)
    lanes.step()
    lanes.engine.abort("a")

    assert ["b"] == lanes.step()


def test_of_one_that_is_aborted_in_flight_nothing_is_told_and_its_slots_are_free_when_it_has_landed():
    lanes = decoding()
    lanes.add("b", 18)
    lanes.step()

    assert ["abort"] == [delta.finish_reason for delta in lanes.engine.abort("b")]
    assert 16 - 5 - 1 == lanes.engine._pool.num_free  # 18 tokens in slots of four, and the other's
    lanes.engine.check()
    lanes.air.is_due = True
    assert ["a"] == lanes.step()
    assert 16 - 2 == lanes.engine._pool.num_free


def test_an_engine_that_has_nothing_but_a_flight_of_nobody_has_work_until_it_lands():
    lanes = decoding()
    lanes.add("b", 18)
    lanes.step()
    lanes.engine.abort_all()

    assert lanes.engine.has_work
    assert [] == lanes.step()
    assert not lanes.engine.has_work
    lanes.engine.check()


def test_when_a_decode_needs_the_slots_of_a_prompt_that_flies_the_prompt_lands_first():
    lanes = decoding(num_slots=6)
    lanes.add("b", 18)  # all that are left
    tokens = [name for _ in range(3) for name in lanes.step()]

    assert ["a", "a", "b"] == tokens[:3] or ["a", "b"] == tokens[:2]
    assert 1 == len(lanes.prefills.batches)
    lanes.engine.check()


@pytest.mark.parametrize("plan", ["decodes", "prefills"])
def test_when_either_lane_fails_all_that_runs_ends_and_what_waits_is_served(plan):
    lanes = decoding()
    getattr(lanes, plan).fail_at = 1
    lanes.add("b", 18)
    lanes.air.is_due = True
    reasons = [delta.finish_reason for _ in range(2) for delta in lanes.engine.step() if delta.finish_reason]

    assert ["error", "error"] == reasons
    lanes.engine.check()
    lanes.add("c", 3)
    assert ["c"] == lanes.step()


def test_each_lane_has_its_own_times_and_predictions_in_the_metrics():
    metrics = EngineMetrics("tiny")
    costs = CostModel(COST, Rates(1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3))
    lanes = decoding(observer=metrics, costs=costs)
    lanes.add("b", 18)
    for is_due in (False, False, True):
        lanes.air.is_due = is_due
        lanes.step()
    registry = CollectorRegistry()
    registry.register(metrics)
    counts = [registry.get_sample_value("trivet:step_seconds_count", {**LABELS, "lane": lane})
              for lane in ("both", "decode", "prefill")]  # fmt: skip

    assert [2, 2, 1] == counts
    models = [StepTimes(costs, metrics, has_lanes=True).known(lane) for lane in ("both", "decode", "prefill")]
    assert [costs, None, None] == models  # what steps beside others take is to be learned


def test_a_closed_engine_has_landed_what_flew():
    lanes = decoding()
    lanes.add("b", 18)
    lanes.step()
    lanes.engine.close()

    lanes.engine.check()
    assert not lanes.engine.has_work


def test_decodes_beside_prefill_have_memory_of_their_own_as_much_as_is_planned():
    plan = cpu_plan("llama", "bfloat16")
    lanes = side_by_side(plan, [None, None], 1)

    assert activation_bytes(plan.graph, decode_limits(plan.limits), plan._slots) == lanes.activation_bytes
    lanes.close()
    plan.close()  # all of it: a view that is left would raise


@pytest.mark.parametrize(
    "plan, cpus, wanted",
    [
        (lambda: PretendPlan(), [0, 1, 2, 3], "this device is none"),
        (lambda: cpu_plan("llama", "bfloat16"), [0], "there is one thread"),
        (lambda: cpu_plan("llama", "bfloat16", limits=Limits(32, 1, 1, 64)), [0, 1, 2, 3], "one sequence"),
    ],
)
def test_where_no_two_steps_can_run_at_once_two_lanes_are_refused_and_auto_says_why_it_is_one(plan, cpus, wanted):
    bound = plan()
    (line,) = choose_lanes(bound, cpus, "auto")[1].lines

    assert wanted in line
    for choose in (lambda: choose_lanes(bound, cpus, "2"), lambda: measured_choice(bound, cpus)):
        with pytest.raises(ResourceError, match=wanted):
            choose()


def test_auto_measures_where_there_are_two_cores():
    bound, choice = choose_lanes(cpu_plan("llama", "bfloat16"), (0, 1), "auto")

    assert [(1, 1)] == [(each.decode_cpus, each.prefill_cpus) for each in choice.measured]
    assert (bound is None) == (choice.num_lanes == 1)
    if bound is not None:
        bound.close()


def measured(gain, decode_cpus=1):
    return Measured(8, decode_cpus, 4 - decode_cpus, 0.01, 500.0, 0.02, 300.0 * gain, 300.0)


@given(st.lists(st.floats(0.1, 3), min_size=1, max_size=3))
def test_two_lanes_are_chosen_where_a_split_does_more_prefill_than_one_lane(gains):
    choice = judge([measured(gain, number) for number, gain in enumerate(gains, 1)])

    assert (2 if max(gains) > 1 else 1) == choice.num_lanes
    assert len(gains) + 1 == len(choice.lines)
    if choice.num_lanes == 2:
        assert max(gains) == gains[choice.decode_cpus - 1]


def test_the_choice_says_its_figures():
    assert (
        "1 + 3 cores: 8 decodes take 10.0 ms alone, 20.0 ms beside prefill; prefill does 500 tokens/s alone, 150 "
        "beside decodes; one lane does 300 in steps of 20.0 ms",
        "one lane: two do 0.50 times its prefill at best where decodes take the same time",
    ) == judge([measured(0.5)]).lines
    assert (
        "two lanes, 1 + 3 cores: one does no prefill where decodes take the same time"
        == judge([replace(measured(0.5), one_lane_per_s=0.0)]).lines[-1]
    )


@given(st.integers(1, 64))
def test_a_split_leaves_cores_to_both_lanes(num_cpus):
    assert all(0 < each < max(2, num_cpus) for each in splits_of(num_cpus))


class LinearPlan:
    """Takes a millisecond, and one more for each eight tokens."""

    num_slots, slot_tokens, limits = 100, 16, Limits(512, 9, 9, 4096)
    now = 0.0

    def run(self, batch):
        self.now += 1e-3 + len(batch.tokens) / 8e3


@given(st.floats(2e-3, 0.1))
def test_what_fits_beside_decodes_is_found_between_steps_that_are_run(step_s):
    plan = LinearPlan()
    decodes = measure.__globals__["_decodes"](plan)
    fits = _most_beside(plan, decodes, step_s, lambda: plan.now)

    assert min(504, (step_s - 1e-3) * 8e3 - len(decodes.tokens)) == pytest.approx(fits, abs=0.01)


def test_both_lanes_and_one_are_measured_on_a_real_plan():
    plan = cpu_plan("llama", "bfloat16")
    (found,) = measured_choice(plan, [None, None]).measured

    assert (1, 1, 7) == (found.decode_cpus, found.prefill_cpus, found.num_decodes)
    assert 0 < min(found.decode_s, found.decode_alone_s, found.prefill_per_s, found.prefill_alone_per_s)
    plan.close()


def test_the_command_says_what_it_chose(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIVET_CACHE", str(tmp_path))
    asked = [str(FIXTURES / "llama"), "--threads", "2", "--kv-memory", "16MiB"]
    text = CliRunner().invoke(bench_lanes, asked)
    document = json.loads(CliRunner().invoke(bench_lanes, [*asked, "--json"]).stdout)

    assert 0 == text.exit_code, text.output
    assert "1 + 1 cores: " in text.output
    assert text.output.splitlines()[-1].startswith(("one lane: ", "two lanes, 1 + 1 cores: "))
    assert 1 == len(document["measured"])
    assert np.isin(document["decode_cpus"], [None, 1])
