import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.small_model import LLAMA_CONFIG
from tests.unit.waiting import waiting
from trivet.framework.engine.batch import to_batch
from trivet.framework.engine.budget import Budget
from trivet.framework.engine.chunk import Chunk
from trivet.framework.engine.cost_model import CostModel, Rates, Work, calibrated, guessed, rates_of, work_of
from trivet.framework.engine.decodes import Decodes
from trivet.framework.graph.cost import StepCost, flops, step_cost, streamed_bytes
from trivet.framework.model.config import parse_config
from trivet.framework.model.loader import model_graph

COST = StepCost(body_bytes=200 * 10**6, head_bytes=50 * 10**6, context_bytes=20_000, token_flops=2 * 10**8,
                row_flops=5 * 10**7, attended_flops=70_000)  # fmt: skip
works = st.builds(
    lambda tokens, rows, past: Work(tokens, min(tokens, rows), past + tokens, past * tokens + tokens),
    st.integers(1, 4096), st.integers(0, 64), st.integers(0, 30_000),
)  # fmt: skip
costs = st.floats(1e-13, 1e-8)
overlaps = st.booleans()
rates = st.builds(Rates, st.floats(1e-6, 1e-2), st.floats(1e-7, 1e-4), costs, costs, costs, costs)


@pytest.fixture(scope="module")
def graph():
    return model_graph(parse_config(LLAMA_CONFIG), "bfloat16")


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=6))
def test_the_coefficients_give_what_the_contracts_give_for_every_batch(graph, drawn):
    chunks = []
    for order, (length, past, count) in enumerate(drawn):
        sequence = waiting(order, length + past)
        sequence.num_computed = past
        sequence.slots.append(0)
        chunks.append(Chunk(sequence, min(count, length)))
    batch, work, cost = to_batch(Decodes(len(chunks), 1000), chunks), work_of(chunks), step_cost(graph)

    assert streamed_bytes(graph, batch) == cost.body_bytes + cost.head_bytes + cost.context_bytes * work.context
    assert flops(graph, batch) == (
        cost.token_flops * work.num_tokens + cost.row_flops * work.num_rows + cost.attended_flops * work.attended
    )


@given(rates, overlaps, works, st.integers(0, 5000), st.integers(1, 600))
def test_more_work_is_never_predicted_to_take_less(drawn, overlaps, work, position, num_tokens):
    model = CostModel(COST, drawn, overlaps=overlaps)

    assert model.predict(work) <= model.predict(work.plus(position, num_tokens))


@given(rates, overlaps, works, st.integers(0, 5000), st.integers(1, 600), st.floats(1e-4, 10))
def test_most_tokens_is_the_last_that_fits(drawn, overlaps, work, position, num_tokens, target_s):
    model = CostModel(COST, drawn, overlaps=overlaps)
    most = model.most_tokens(work, position, num_tokens, target_s)

    assert most == 0 or model.predict(work.plus(position, most)) <= target_s
    assert most == num_tokens or model.predict(work.plus(position, most + 1)) > target_s


@given(rates, overlaps, works, st.floats(1e-6, 100))
def test_a_step_teaches_toward_what_it_took_and_keeps_every_rate_above_zero(drawn, overlaps, work, seconds):
    model = CostModel(COST, drawn, overlaps=overlaps)
    before = model.predict(work)
    model.learn(work, seconds)
    after = model.predict(work)

    assert min(before, seconds) * (1 - 1e-9) <= after <= max(before, seconds) * (1 + 1e-9)
    assert all(value > 0 for value in vars(drawn).values())


@pytest.mark.parametrize("overlaps", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_it_learns_another_machine_from_its_steps_within_15_percent(seed, overlaps):
    draws = np.random.default_rng(seed)
    machine = CostModel(COST, rates_of(12e9, 90e9, step_s=3e-4, row_s=3e-5), overlaps=overlaps)
    machine.rates.attention_flop *= 3
    model = CostModel(COST, Rates(), overlaps=overlaps)
    errors = []
    for _ in range(600):
        work = Work()
        for _ in range(draws.integers(1, 17)):
            work = work.plus(int(draws.integers(1, 3000)), 1)
        if draws.random() < 0.5:
            work = work.plus(int(draws.integers(0, 3000)), int(draws.integers(16, 512)))
        seconds = machine.predict(work) * draws.uniform(0.95, 1.05)
        errors.append(abs(model.predict(work) - seconds) / seconds)
        model.learn(work, seconds)

    assert 0.15 > float(np.median(errors[300:]))


def test_one_step_that_met_something_else_moves_the_model_by_a_tenth_at_most():
    model, work = CostModel(COST, Rates()), Work().plus(100, 1)
    before = model.predict(work)
    model.learn(work, 1000 * before)

    assert 1.1 == pytest.approx(model.predict(work) / before)


@pytest.mark.parametrize("speed", [0.1, 0.5, 3, 30])
def test_a_guess_gives_way_to_sixteen_steps_and_is_known_as_one_until_then(graph, speed):
    model, machine = guessed(graph), CostModel(step_cost(graph), rates_of(10e9 * speed, 50e9 * speed))
    works = [Work().plus(position, 1) for position in range(100, 115)]
    for work in [Work().plus(0, 100), *works]:
        assert not model.is_known
        model.learn(work, machine.predict(work))

    assert model.is_known
    assert machine.predict(works[-1]) == pytest.approx(model.predict(works[-1]), rel=0.1)


class ClockedPlan:
    """A plan that takes, by its own clock, what a machine's model says."""

    num_slots, slot_tokens = 64, 32

    def __init__(self, graph, machine):
        self.graph, self.machine, self.now = graph, machine, 0.0
        self.limits = type("Limits", (), {"max_context": 1024, "max_tokens": 256})

    def run(self, batch):
        self.now += self.machine.predict(Work().plus(int(batch.positions[0]), len(batch.tokens)))


def test_calibration_finds_a_machine_from_four_steps(graph):
    machine = CostModel(step_cost(graph), Rates(2e-5, 1e-6, 3e-10, 7e-11, 2e-10, 9e-11), overlaps=False)
    plan = ClockedPlan(graph, machine)
    model = calibrated(plan, clock=lambda: plan.now)
    for past, num_tokens in ((0, 1), (0, 32), (1023, 1), (992, 32)):
        work = Work().plus(past, num_tokens)
        assert machine.predict(work) == pytest.approx(model.predict(work), rel=0.05)


@given(rates, st.floats(1e-4, 1), st.lists(st.integers(1, 400), min_size=1, max_size=8), st.integers(0, 8))
def test_a_budget_is_kept_to_and_the_first_prefill_gets_a_block(drawn, target_s, lengths, num_decodes):
    model = CostModel(COST, drawn)
    decodes = [Chunk(waiting(order, 1), 1) for order in range(num_decodes)]
    step = Budget(512, model, target_s).begin(work_of(decodes))
    chunks = list(decodes)
    for order, length in enumerate(lengths, num_decodes):
        sequence = waiting(order, length)
        if num_tokens := step.take(sequence):
            chunks.append(Chunk(sequence, num_tokens))
    first = chunks[num_decodes].num_tokens

    assert 512 >= sum(chunk.num_tokens for chunk in chunks)
    assert min(lengths[0], 16) <= first
    if len(chunks) > num_decodes + 1 or first > 16:
        assert model.predict(work_of(chunks)) <= max(
            target_s, model.predict(work_of(decodes).plus(0, min(lengths[0], 16)))
        )


@given(rates, st.lists(st.integers(1, 400), min_size=1, max_size=8), st.integers(0, 8))
def test_without_a_target_prefill_adds_at_most_three_steps_of_one_decode_where_somebody_decodes(
    drawn, lengths, num_decodes
):
    model = CostModel(COST, drawn)
    decodes = Work(num_decodes, num_decodes, 50 * num_decodes, 50 * num_decodes)
    step = Budget(512, model).begin(decodes)
    taken = [Chunk(waiting(order, length), 0) for order, length in enumerate(lengths)]
    taken = [Chunk(sequence, step.take(sequence)) for sequence, _ in taken]
    counts = [num_tokens for _, num_tokens in taken]
    added_s = model.predict(work_of((chunk for chunk in taken if chunk.num_tokens), decodes)) - model.predict(decodes)

    if num_decodes == 0:
        assert min(512, sum(lengths)) == sum(counts)
    elif counts[0] > 16 or sum(counts) > counts[0]:
        assert added_s <= 3 * model.predict(Work().plus(0, 1)) * (1 + 1e-9)


def test_without_overlap_a_step_takes_as_long_as_its_bytes_and_its_arithmetic():
    one, other = (CostModel(COST, rates_of(10e9, 100e9, 0, 0), overlaps=each) for each in (True, False))
    bytes_s = (200e6 + 50e6 + 20_000 * 5) / 10e9
    flops_s = (4 * 2e8 + 5e7 + 70_000 * 14) / 100e9
    work = Work(num_tokens=4, num_rows=1, context=5, attended=14)

    assert pytest.approx(bytes_s + flops_s) == other.predict(work)
    assert pytest.approx(bytes_s) == one.predict(work)  # in each of its parts they are the longer


def test_a_guess_bounds_no_step(graph):
    model, decodes = guessed(graph), Work(3, 3, 90, 90)
    assert Budget(512, model).limit_s(decodes) is None
    for _ in range(16):
        model.learn(decodes, 0.01)

    assert Budget(512, model).limit_s(decodes) is not None
