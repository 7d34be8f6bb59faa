"""Whatever arrives, leaves, is late or fails, in any order: nothing deadlocks, all requests end, the pool is whole."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.properties.test_engine_schedule import CONTEXT, VOCAB, outcome, plan_of, serve
from tests.unit.pretend_air import Air
from tests.unit.pretend_plan import PretendTokenizer
from trivet.base.errors import OverloadedError
from trivet.framework.engine.cost_model import CostModel, Rates
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import Request
from trivet.framework.engine.targets import Targets
from trivet.framework.engine.terms import Terms
from trivet.framework.graph.cost import StepCost
from trivet.framework.graph.side_by_side import SideBySide

NUM_SLOTS, SLOT_TOKENS, MAX_TOKENS, MAX_SEQUENCES = 7, 4, 20, 4
COST = StepCost(body_bytes=100, head_bytes=10, context_bytes=3, token_flops=50, row_flops=5, attended_flops=2)
terms = st.builds(
    Terms, st.sampled_from(["", "a", "b"]), st.integers(-1, 1), st.sampled_from([None, None, None, 1.0, 30.0])
)
params = st.builds(
    SamplingParams, temperature=st.sampled_from([0, 1.0]), max_tokens=st.sampled_from([1, 4, 15]),
    n=st.sampled_from([1, 1, 3]), ignore_eos=st.booleans(),
)  # fmt: skip


class Schedules(RuleBasedStateMachine):
    """An engine with targets on a machine whose time goes by rules of its own."""

    num_lanes = 1

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.plan = plan_of(NUM_SLOTS, SLOT_TOKENS, MAX_TOKENS, MAX_SEQUENCES)
        self.air = Air()
        lanes = None
        if self.num_lanes == 2:
            lanes = SideBySide(self.plan.beside(MAX_SEQUENCES), self.plan.beside(MAX_TOKENS), (), ())
        self.plans = [self.plan] if lanes is None else [self.plan, lanes.decodes, lanes.prefills]
        self.engine = Engine(
            self.plan,
            PretendTokenizer(),
            lanes=lanes,
            costs=CostModel(COST, Rates(1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3)),
            targets=Targets(itl_s=0.5, ttft_s=20.0, max_waiting=6),
            clock=lambda: self.now,
        )
        if lanes is not None:
            self.air.replace_thread_of(self.engine)
        self.requests: dict[str, Request] = {}
        self.deltas: dict[tuple[str, int], list] = {}

    @rule(prompt=st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=15).map(tuple), params=params, terms=terms)
    def arrive(self, prompt, params, terms):
        request = Request(str(len(self.requests)), prompt, params, seed=len(prompt), terms=terms)
        try:
            self.engine.add(request)
        except OverloadedError:
            return
        self.requests[request.request_id] = request
        self.deltas.update({(request.request_id, index): [] for index in range(params.n)})

    @rule(number=st.integers(0, 30))
    def leave(self, number):
        self._take(self.engine.abort(str(number)))

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.3, 5.0]), times=st.integers(1, 4))
    def step(self, seconds, times):
        for _ in range(times):
            self._take(self._timed_step(seconds))

    @rule(which=st.integers(0, 2))
    def fail(self, which):
        plan = self.plans[which % len(self.plans)]
        plan.fail_at = len(plan.batches) + 1
        self._take(self._timed_step(0.1))
        plan.fail_at = None

    @invariant()
    def is_whole(self):
        self.engine.check()
        assert not any(plan.wrong for plan in self.plans)

    def teardown(self):
        steps = 0
        while self.engine.has_work:
            self._take(self._timed_step(0.05))
            steps += 1
            assert steps <= self.num_lanes * CONTEXT * (len(self.deltas) + 1), "starved"
        self.engine.check()
        for (request_id, index), deltas in self.deltas.items():
            assert deltas, f"{request_id} has no end"
            assert [deltas[-1]] == [delta for delta in deltas if delta.finish_reason is not None]
            if deltas[-1].finish_reason in ("stop", "length"):
                alone = serve(plan_of(NUM_SLOTS, SLOT_TOKENS, 64, 2), [(self.requests[request_id], 0, None)])
                assert outcome(alone[request_id, index]) == outcome(deltas)

    def _timed_step(self, seconds):
        for plan in self.plans:
            plan.on_run = lambda: self._pass(seconds)
        return self.engine.step()

    def _pass(self, seconds):
        self.now += seconds

    def _take(self, deltas):
        for delta in deltas:
            self.deltas[delta.request_id, delta.index].append(delta)


class LaneSchedules(Schedules):
    """With two lanes: a step of prefill lands whenever it likes."""

    num_lanes = 2

    @rule(is_early=st.booleans(), is_due=st.booleans())
    def turn(self, is_early, is_due):
        self.air.is_early, self.air.is_due = is_early, is_due


TestSchedules, TestLaneSchedules = Schedules.TestCase, LaneSchedules.TestCase
TestSchedules.settings = TestLaneSchedules.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)  # fmt: skip
