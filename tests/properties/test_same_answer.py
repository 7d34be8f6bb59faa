"""The promise of the house, with real kernels: a request's tokens and log probabilities are the same bits served
alone, in any batch, with any chunk size, any arrival order, after a preemption, with one thread or two, in one lane or
two."""

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from tests.system.tiny import FAMILIES, cpu_plan
from trivet.base.formats import KvFormat
from trivet.framework.engine.delta import Delta
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.observer import NullObserver, Step
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import new_request
from trivet.framework.graph.cpu_plan import CpuPlan
from trivet.framework.graph.plan import Limits
from trivet.framework.graph.side_by_side import SideBySide, side_by_side

Answer = tuple[tuple[int, ...], tuple[float, ...]]

params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.8, 1.7]),
    top_p=st.sampled_from([0.9, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    seed=st.integers(0, 5),
    max_tokens=st.integers(1, 20),
    logprobs=st.just(1),
    ignore_eos=st.just(True),
)
prompts = st.lists(st.integers(3, 511), min_size=1, max_size=60)
# (prompt, params, the step before which it arrives)
arrivals = st.lists(st.tuples(prompts, params, st.integers(0, 8)), min_size=1, max_size=5)


class Preemptions(NullObserver):
    def __init__(self) -> None:
        self.count = 0

    def step(self, step: Step) -> None:
        self.count += step.num_preemptions


@cache
def plan(family: str, dtype: str, num_threads: int, num_slots: int, kv_dtype: KvFormat | None = None) -> CpuPlan:
    limits = Limits(max_tokens=64, max_sequences=8, max_rows=8, max_context=80)
    return cpu_plan(
        family, dtype, num_threads=num_threads, num_slots=num_slots, limits=limits, kv_dtype=kv_dtype
    )  # fmt: skip


@cache
def lanes(family: str, dtype: str, num_slots: int) -> SideBySide:
    return side_by_side(plan(family, dtype, 2, num_slots), [None, None], 1)


def serve(
    engine: Engine, schedule: list[tuple[list[int], SamplingParams, int]], leaves: tuple[int, int] | None = None
) -> list[Answer]:
    deltas: list[Delta] = []
    step = 0
    waiting = sorted(enumerate(schedule), key=lambda item: item[1][2])
    while waiting or engine.has_work:
        while waiting and waiting[0][1][2] <= step:
            number, (prompt, each, _) = waiting.pop(0)
            engine.add(new_request(str(number), prompt, each))
        if leaves is not None and leaves[1] == step:
            deltas += engine.abort(str(leaves[0]))
        deltas += engine.step()
        step += 1
    engine.check()
    return [answer(deltas, str(number)) for number in range(len(schedule))]


def answer(deltas: list[Delta], request_id: str) -> Answer:
    mine = [delta for delta in deltas if delta.request_id == request_id]
    tokens = tuple(token for delta in mine for token in delta.token_ids)
    return tokens, tuple(each.logprob for delta in mine for each in delta.logprobs or ())


@given(
    family=st.sampled_from(FAMILIES),
    dtype=st.sampled_from(["float32", "bfloat16", "int8"]),
    kv_dtype=st.sampled_from([None, "int8"]),
    schedule=arrivals,
    chunk=st.integers(1, 64),
    num_threads=st.sampled_from([1, 2]),
    num_slots=st.sampled_from([5, 8, 20]),  # five hold one sequence of full length: the others are preempted
)
def test_an_answer_does_not_depend_on_what_else_is_served_or_how(
    family: str, dtype: str, kv_dtype: KvFormat | None, schedule: list[tuple[list[int], SamplingParams, int]],
    chunk: int, num_threads: int, num_slots: int,
) -> None:  # fmt: skip
    alone = plan(family, dtype, 1, 20, kv_dtype)
    wanted = [serve(Engine(alone, None), [(prompt, each, 0)])[0] for prompt, each, _ in schedule]
    engine = Engine(plan(family, dtype, num_threads, num_slots, kv_dtype), None, max_step_tokens=chunk)

    assert wanted == serve(engine, schedule)


@given(
    family=st.sampled_from(FAMILIES),
    schedule=arrivals,
    chunk=st.integers(1, 64),
    num_slots=st.sampled_from([5, 8, 20]),
    leaves=st.none() | st.tuples(st.integers(0, 4), st.integers(1, 12)),  # who is aborted before which step
)
def test_an_answer_is_the_same_where_prefill_runs_beside_decodes(
    family: str, schedule: list[tuple[list[int], SamplingParams, int]], chunk: int, num_slots: int,
    leaves: tuple[int, int] | None,
) -> None:  # fmt: skip
    alone = plan(family, "bfloat16", 1, 20)
    wanted = [serve(Engine(alone, None), [(prompt, each, 0)])[0] for prompt, each, _ in schedule]
    bound = lanes(family, "bfloat16", num_slots)
    engine = Engine(plan(family, "bfloat16", 2, num_slots), None, max_step_tokens=chunk, lanes=bound)
    served = serve(engine, schedule, leaves)
    engine.close()

    for number, (tokens, logprobs) in enumerate(served):
        told = len(tokens) if leaves is not None and leaves[0] == number else None
        assert (wanted[number][0][:told], wanted[number][1][:told]) == (tokens, logprobs)


def test_a_preempted_answer_is_the_same_bits() -> None:
    schedule = [([7 + i, 30, 91, 200 + i], SamplingParams(temperature=0, max_tokens=70, logprobs=1), 0)
                for i in range(3)]  # fmt: skip
    alone = plan("llama", "bfloat16", 1, 20)
    wanted = [serve(Engine(alone, None), [each])[0] for each in schedule]
    observer = Preemptions()
    tight = Engine(plan("llama", "bfloat16", 2, 8), None, observer=observer)  # fifteen slots are wanted in the end

    assert wanted == serve(tight, schedule)
    assert observer.count > 0
