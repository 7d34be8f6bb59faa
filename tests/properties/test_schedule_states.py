"""Whatever arrives, leaves, is late or fails, in any order: nothing deadlocks, all requests end, the pool is whole."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.properties.test_engine_schedule import CONTEXT, VOCAB, outcome, plan_of, serve
from tests.unit.pretend_plan import PretendTokenizer
from trivet.base.errors import OverloadedError
from trivet.framework.engine.cost_model import CostModel, Rates
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import Request
from trivet.framework.engine.targets import Targets
from trivet.framework.engine.terms import Terms
from trivet.framework.graph.cost import StepCost

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

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.plan = plan_of(NUM_SLOTS, SLOT_TOKENS, MAX_TOKENS, MAX_SEQUENCES)
        self.engine = Engine(
            self.plan,
            PretendTokenizer(),
            costs=CostModel(COST, Rates(1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3)),
            targets=Targets(itl_s=0.5, ttft_s=20.0, max_waiting=6),
            clock=lambda: self.now,
        )
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

    @rule()
    def fail(self):
        self.plan.fail_at = len(self.plan.batches) + 1
        self._take(self._timed_step(0.1))
        self.plan.fail_at = None

    @invariant()
    def is_whole(self):
        self.engine.check()

    def teardown(self):
        steps = 0
        while self.engine.has_work:
            self._take(self._timed_step(0.05))
            steps += 1
            assert steps <= CONTEXT * (len(self.deltas) + 1), "starved"
        self.engine.check()
        for (request_id, index), deltas in self.deltas.items():
            assert deltas, f"{request_id} has no end"
            assert [deltas[-1]] == [delta for delta in deltas if delta.finish_reason is not None]
            if deltas[-1].finish_reason in ("stop", "length"):
                alone = serve(plan_of(NUM_SLOTS, SLOT_TOKENS, 64, 2), [(self.requests[request_id], 0, None)])
                assert outcome(alone[request_id, index]) == outcome(deltas)

    def _timed_step(self, seconds):
        run = self.plan.run

        def slow(batch):
            self.now += seconds
            return run(batch)

        self.plan.run = slow
        try:
            return self.engine.step()
        finally:
            self.plan.run = run

    def _take(self, deltas):
        for delta in deltas:
            self.deltas[delta.request_id, delta.index].append(delta)


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
