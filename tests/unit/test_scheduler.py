import numpy as np
import pytest

from trivet.framework.engine.budget import Budget
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sampler import to_draw
from trivet.framework.engine.scheduler import Scheduler
from trivet.framework.engine.sequence import Request, Sequence
from trivet.framework.memory.slots import SlotPool


def sequence(order, num_tokens):
    request = Request(f"r{order}", (order + 2,) * num_tokens, SamplingParams(), seed=0)
    draw = to_draw(request.params, num_tokens, seed=0, choice=0, stop_ids=())
    return Sequence(request, 0, order, 1000, frozenset(), draw, None, 0.0)


def scheduler(num_slots=100, slot_tokens=4, max_step_tokens=32, max_running=8):
    return Scheduler(SlotPool(num_slots, slot_tokens), Budget(max_step_tokens), max_running)


def run(line):
    """One step on a plan that computes nothing; what ran, as {order: tokens}."""
    step = line.schedule()
    due = line.computed(step)
    line.chose(step, due, np.ones(len(due), np.int32))
    line.check()
    return {each.order: 1 for each in step.decodes} | {each.order: num_tokens for each, num_tokens in step.prefills}


def test_decodes_run_first_and_prefill_takes_what_is_left_by_arrival():
    line = scheduler(max_step_tokens=10)
    line.add(sequence(0, 4))
    assert {0: 4} == run(line)
    line.add(sequence(1, 12))
    line.add(sequence(2, 5))

    assert {0: 1, 1: 9} == run(line)
    assert {0: 1, 1: 3, 2: 5} == run(line)
    assert {0: 1, 1: 1, 2: 1} == run(line)


def test_nobody_overtakes_the_first_in_line():
    line = scheduler(num_slots=4, slot_tokens=4)
    for order, num_tokens in enumerate((8, 12, 1)):
        line.add(sequence(order, num_tokens))

    assert {0: 8} == run(line)  # 12 tokens do not fit beside it, and the 1 behind them waits its turn


def test_a_turn_that_waits_for_slots_counts_once_however_long_it_waits():
    line = scheduler(num_slots=4, slot_tokens=4)
    first, second = sequence(0, 8), sequence(1, 12)
    line.add(first)
    line.add(second)
    for _ in range(3):
        run(line)
    assert (1, 1) == (line.num_admissions, line.num_held_up)

    line.remove(first)
    run(line)

    assert (2, 1) == (line.num_admissions, line.num_held_up)


def test_out_of_slots_the_newest_steps_back_to_the_front_of_the_waiting():
    line = scheduler(num_slots=4, slot_tokens=4)
    first, second, third = (sequence(order, num_tokens) for order, num_tokens in enumerate((8, 8, 1)))
    for each in (first, second, third):
        line.add(each)
    assert {0: 8, 1: 8} == run(line)

    assert {0: 1} == run(line)
    assert [second, third] == list(line.waiting)
    assert 0 == second.num_computed
    assert 9 == len(second.tokens)  # what it generated stays
    assert 1 == line.num_preemptions


def test_the_newest_may_have_to_step_back_itself():
    line = scheduler(num_slots=3, slot_tokens=4)
    line.add(sequence(0, 5))
    line.add(sequence(1, 4))
    run(line)

    assert {0: 1} == run(line)
    assert [1] == [each.order for each in line.waiting]


def test_removing_frees_the_slots_at_once_wherever_it_stands():
    line = scheduler(num_slots=2, slot_tokens=4)
    running, waiting, last = (sequence(order, 8) for order in range(3))
    for each in (running, waiting, last):
        line.add(each)
    run(line)
    line.remove(waiting)
    line.remove(running)

    assert {2: 8} == run(line)


@pytest.mark.parametrize("max_step_tokens, max_running", [(3, 8), (8, 3)])
def test_no_more_sequences_run_than_a_step_has_places(max_step_tokens, max_running):
    line = scheduler(max_step_tokens=max_step_tokens, max_running=max_running)
    for order in range(6):
        line.add(sequence(order, 1))
    for _ in range(5):
        assert len(run(line)) <= 3


def test_an_empty_line_schedules_nothing():
    assert scheduler().schedule().is_empty


def test_the_check_finds_a_line_out_of_order():
    line = scheduler()
    line.add(sequence(0, 1))
    line.add(sequence(1, 1))
    run(line)
    line.running.reverse()
    with pytest.raises(AssertionError, match="out of order"):
        line.check()
