import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.pretend_plan import PretendPlan
from trivet.base.errors import OverloadedError, RequestError
from trivet.framework.engine.cost_model import CostModel, Rates
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.observer import NullObserver
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import Request
from trivet.framework.engine.targets import MAX_RETRY_S, Targets, refusal
from trivet.framework.engine.terms import Terms
from trivet.framework.graph.cost import StepCost
from trivet.framework.graph.plan import Limits

LONG = SamplingParams(temperature=0, ignore_eos=True)
TOKEN_S = 1.0  # what a token costs on the pretended machine
waits = st.none() | st.floats(0, 1e4)


class Refusals(NullObserver):
    def __init__(self):
        self.reasons = []

    def refused(self, reason):
        self.reasons.append(reason)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def request(number, num_tokens=4, terms=None, params=LONG):
    return Request(str(number), (3,) * num_tokens, params, 0, terms=terms or Terms())


def engine(targets, clock=None, observer=None, is_guess=False):
    cost = StepCost(body_bytes=0, head_bytes=0, context_bytes=0, token_flops=1, row_flops=0, attended_flops=0)
    costs = CostModel(cost, Rates(step=1e-9, row=1e-9, linear_flop=TOKEN_S), is_guess=is_guess)
    plan = PretendPlan(limits=Limits(max_tokens=8, max_sequences=2, max_rows=2, max_context=64))
    return Engine(plan, None, costs=costs, targets=targets, clock=clock or Clock(), observer=observer)


@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 10), waits, waits, waits)
def test_a_refusal_says_when_to_come_again(max_waiting, num_waiting, num_new, wait_s, ttft_s, timeout_s):
    refused = refusal(Targets(None, ttft_s, max_waiting), num_waiting, num_new, wait_s, timeout_s)
    limits = [limit for limit in (ttft_s, timeout_s) if limit is not None]
    is_late = wait_s is not None and bool(limits) and wait_s > min(limits)

    assert (refused is not None) == (num_waiting + num_new > max_waiting or is_late)
    assert refused is None or 1 <= refused[1].retry_after_s <= MAX_RETRY_S


def test_with_nobody_waiting_a_request_is_taken_whatever_it_asks():
    assert refusal(Targets(None, 0.001, 1), 0, 128, 1000.0, 0.1) is None


def test_the_queue_is_bounded_and_its_refusals_are_told():
    watched = Refusals()
    full = engine(Targets(max_waiting=2), observer=watched)
    for number in range(2):
        full.add(request(number))
    full.step()
    for number in (2, 3):
        full.add(request(number))
    with pytest.raises(OverloadedError, match="2 sequences wait, 1 more would pass the 2 of --max-waiting"):
        full.add(request(4))
    assert ["queue"] == watched.reasons

    full.abort("2")
    full.add(request(5))  # a place in the queue is free at once


def test_a_request_whose_first_token_would_be_late_is_refused_with_the_time_to_wait():
    promised = engine(Targets(ttft_s=10))
    promised.add(request(0, num_tokens=8))
    with pytest.raises(OverloadedError, match=r"predicted after 16.0 s, wanted 10 s") as refused:
        promised.add(request(1, num_tokens=8))

    assert 7 == refused.value.retry_after_s  # whole seconds, rounded up


def test_a_request_that_gives_itself_less_time_than_the_queue_takes_is_refused():
    promised = engine(Targets())
    promised.add(request(0, num_tokens=8))
    with pytest.raises(OverloadedError, match="wanted 5 s"):
        promised.add(request(1, terms=Terms(timeout_s=5)))


def test_a_request_past_its_time_ends_with_timeout_running_or_waiting():
    clock = Clock()
    timed = engine(Targets(), clock)
    for number in range(3):  # the third waits
        timed.add(request(number, terms=Terms(timeout_s=None if number == 0 else 90)))
    timed.step()
    clock.now = 90.0
    ended = [delta for delta in timed.step() if delta.finish_reason is not None]

    assert [("1", "timeout"), ("2", "timeout")] == [(delta.request_id, delta.finish_reason) for delta in ended]
    assert timed.holds("0")
    timed.check()


def test_an_id_that_is_used_again_is_not_ended_by_the_deadline_of_the_one_before():
    clock = Clock()
    timed = engine(Targets(), clock)
    timed.add(request(0, terms=Terms(timeout_s=10)))
    timed.abort("0")
    clock.now = 5.0
    timed.add(request(0, terms=Terms(timeout_s=100)))
    clock.now = 20.0
    timed.step()

    assert timed.holds("0")


def test_a_flood_of_one_tenant_does_not_keep_anothers_request_waiting():
    shared = engine(Targets())
    for number in range(50):
        shared.add(request(number, terms=Terms("flood"), params=SamplingParams(max_tokens=2, ignore_eos=True)))
    shared.step()
    shared.add(request("other", terms=Terms("other"), params=SamplingParams(max_tokens=2, ignore_eos=True)))
    steps = 0
    while shared.holds("other"):
        shared.step()
        steps += 1

    assert 6 >= steps
    shared.abort_all()


@pytest.mark.parametrize(
    ("terms", "parameter"),
    [(Terms(tenant="x" * 257), "user"), (Terms(priority=1001), "priority"), (Terms(timeout_s=0), "timeout_s"),
     (Terms(timeout_s=float("nan")), "timeout_s"), (Terms(timeout_s=10**400), "timeout_s")],
)  # fmt: skip
def test_terms_out_of_range_are_refused_by_name(terms, parameter):
    with pytest.raises(RequestError) as refused:
        engine(Targets()).add(request(0, terms=terms))

    assert parameter == refused.value.parameter


def test_nobody_is_refused_and_nothing_promised_because_of_a_guess():
    busy = engine(Targets(), is_guess=True)
    for number in range(3):
        busy.add(request(number, 40))
    busy.add(request(3, 40, Terms(timeout_s=TOKEN_S)))

    with pytest.raises(AssertionError, match="blindly"):
        engine(Targets(ttft_s=1.0), is_guess=True)
