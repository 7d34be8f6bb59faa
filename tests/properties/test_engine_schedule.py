"""The same answer, always: whatever else is served, however it is cut, whoever is taken back."""

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.pretend_plan import PretendPlan, PretendTokenizer
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import Request
from trivet.framework.graph.plan import Limits

VOCAB = 23
CONTEXT = 24

params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.7, 1.5]),
    top_p=st.sampled_from([0.8, 1.0]),
    top_k=st.sampled_from([None, 3]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    logprobs=st.sampled_from([None, 2]),
    stop=st.sampled_from([(), ("ab",), ("the", "c")]),
    max_tokens=st.sampled_from([None, 1, 5, 12]),
    min_tokens=st.sampled_from([0, 1]),
    n=st.sampled_from([1, 1, 2]),
)
prompts = st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=7).map(tuple)
arrivals = st.tuples(
    prompts,
    params,
    st.integers(0, 3),  # seed
    st.integers(0, 12),  # the step before which it arrives
    st.none() | st.none() | st.integers(0, 15),  # the step before which it is aborted
)
plans = st.tuples(
    st.integers(2, 12),  # slots
    st.sampled_from([4, 8]),  # tokens of a slot
    st.integers(1, 12),  # tokens of a step
    st.integers(1, 5),  # sequences of a step
)


def plan_of(num_slots, slot_tokens, max_tokens, max_sequences):
    return PretendPlan(num_slots, slot_tokens, VOCAB, Limits(max_tokens, max_sequences, max_sequences, CONTEXT))


def outcome(deltas):
    """What a reader of the whole answer has seen."""
    return (
        [token for delta in deltas for token in delta.token_ids],
        [logprob for delta in deltas for logprob in delta.logprobs or ()],
        "".join(delta.text for delta in deltas),
    )


def serve(plan, schedule):
    """Serve by a schedule of (request, step of arrival, step of abort or None); the answers and the steps it took."""
    engine = Engine(plan, PretendTokenizer())
    answers = {(request.request_id, index): [] for request, _, _ in schedule for index in range(request.params.n)}
    last_event = max(step for _, arrives, leaves in schedule for step in (arrives, leaves or 0))
    step = 0
    while step <= last_event or engine.has_work:
        for request, arrives, leaves in schedule:
            if arrives == step:
                engine.add(request)
            if leaves == step:
                for delta in engine.abort(request.request_id):
                    answers[delta.request_id, delta.index].append(delta)
        for delta in engine.step():
            answers[delta.request_id, delta.index].append(delta)
        engine.check()
        step += 1
        assert step <= last_event + sum(request.params.n * CONTEXT for request, _, _ in schedule) + 1, "starved"
    return answers


@given(st.lists(arrivals, min_size=1, max_size=7), plans)
def test_a_request_gets_the_same_bits_in_any_company(drawn, sizes):
    num_slots, slot_tokens, _, _ = sizes
    schedule = [
        (Request(str(i), prompt, asked, seed), arrives, leaves if leaves is None or leaves > arrives else None)
        for i, (prompt, asked, seed, arrives, leaves) in enumerate(drawn)
    ]
    together = serve(plan_of(*sizes), schedule)
    for request, _, leaves in schedule:
        alone = serve(plan_of(num_slots, slot_tokens, max_tokens=64, max_sequences=2), [(request, 0, None)])
        for key, deltas in alone.items():
            tokens, logprobs, text = outcome(together[key])
            expected = outcome(deltas)
            if together[key] and together[key][-1].finish_reason == "abort":
                assert leaves is not None
                assert (expected[0][: len(tokens)], expected[1][: len(logprobs)]) == (tokens, logprobs)
                assert expected[2].startswith(text)
            else:
                assert expected == (tokens, logprobs, text)
                assert deltas[-1].finish_reason == together[key][-1].finish_reason
