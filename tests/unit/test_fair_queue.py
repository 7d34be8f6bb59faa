from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.waiting import waiting
from trivet.framework.engine.fair_queue import FairQueue

MAX_PROMPT = 2000
asked = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-2, 2), st.integers(1, MAX_PROMPT)), min_size=1, max_size=30
)
prompts = st.lists(st.integers(1, MAX_PROMPT), min_size=20, max_size=20)
places = count()


def turn(queue):
    """As the scheduler has it: whose turn it is has a place from now on."""
    sequence = queue.pop()
    sequence.place = next(places)
    return sequence


def tenant_of(sequence):
    return sequence.request.terms.tenant


@given(asked)
def test_everyone_gets_a_turn_once_and_a_tenants_own_go_by_priority_then_arrival(drawn):
    queue = FairQueue()
    for order, (tenant, priority, num_tokens) in enumerate(drawn):
        queue.push(waiting(order, num_tokens, tenant, priority))
        queue.check()
    taken = []
    while (first := queue.first()) is not None:
        assert first is turn(queue)
        queue.check()
        taken.append(first)
    assert set(range(len(drawn))) == {sequence.order for sequence in taken}
    for tenant in "abc":
        own = [(s.request.terms.priority, s.order) for s in taken if tenant_of(s) == tenant]
        assert sorted(own) == own


@given(st.lists(st.integers(1, MAX_PROMPT), min_size=5, max_size=40), st.integers(0, 4))
def test_a_flood_delays_another_tenant_by_one_request_at_most(flood, num_before):
    queue = FairQueue()
    for order, num_tokens in enumerate(flood):
        queue.push(waiting(order, num_tokens, "flood"))
    for _ in range(num_before):
        turn(queue)
    queue.push(waiting(1000, MAX_PROMPT, "other"))

    assert "other" in (tenant_of(turn(queue)), tenant_of(turn(queue)))


@given(prompts, prompts)
def test_while_both_wait_two_tenants_are_never_further_apart_than_a_prompt(one, other):
    queue = FairQueue()
    for order, (a, b) in enumerate(zip(one, other, strict=True)):
        queue.push(waiting(2 * order, a, "a"))
        queue.push(waiting(2 * order + 1, b, "b"))
    served, left = {"a": 0, "b": 0}, {"a": len(one), "b": len(other)}
    while min(left.values()):
        sequence = turn(queue)
        served[tenant_of(sequence)] += len(sequence.tokens)
        left[tenant_of(sequence)] -= 1
        assert MAX_PROMPT >= abs(served["a"] - served["b"])


def test_one_that_stepped_back_goes_before_everyone_and_is_not_counted_twice():
    queue = FairQueue()
    first, second = waiting(0, 5, "a"), waiting(1, 5, "a")
    third = waiting(2, 5, "b")
    for each in (first, second, third):
        queue.push(each)
    assert first is turn(queue)
    queue.push_back(first)

    assert [first, third, second] == [turn(queue) for _ in range(3)]


def test_what_an_answer_cost_is_counted_when_it_has_ended():
    queue = FairQueue()
    long = waiting(0, 1, "a")
    queue.push(long)
    turn(queue)
    for order, tenant in enumerate("abab", 1):
        queue.push(waiting(order, 1, tenant))
    long.tokens.extend([1] * 5000)
    queue.leave(long)

    assert ["b", "b", "a", "a"] == [tenant_of(turn(queue)) for _ in range(4)]


def test_nobody_saves_up_by_staying_away():
    queue = FairQueue()
    for order in range(6):
        queue.push(waiting(order, 100, "a"))
    for _ in range(3):
        turn(queue)
    for order in range(6, 9):
        queue.push(waiting(order, 100, "b"))

    assert ["a", "b", "a", "b", "a", "b"] == [tenant_of(turn(queue)) for _ in range(6)]


@given(st.integers(1, 50), st.integers(1, MAX_PROMPT))
def test_nor_by_coming_while_others_run_and_nobody_waits(num_before, num_tokens):
    queue, before = FairQueue(), None
    for order in range(num_before):  # one after the other, and never none of them
        queue.push(waiting(order, num_tokens, "steady"))
        running = turn(queue)
        if before is not None:
            queue.leave(before)
        before = running
    for order in range(100, 110):
        queue.push(waiting(order, MAX_PROMPT, "new"))
    queue.push(waiting(200, num_tokens, "steady"))

    assert "steady" in [tenant_of(turn(queue)) for _ in range(2)]


def test_leaving_wherever_it_waits_leaves_the_others():
    queue = FairQueue()
    each = [waiting(order, 1, tenant) for order, tenant in enumerate("aab")]
    for sequence in each:
        queue.push(sequence)
    queue.push_back(turn(queue))
    queue.leave(each[0])
    queue.leave(each[2])

    assert [each[1]] == list(queue)
    queue.check()


def test_the_check_finds_one_who_waits_twice():
    queue = FairQueue()
    sequence = waiting(0, 1, "a")
    queue.push(sequence)
    queue.push_back(sequence)
    with pytest.raises(AssertionError, match="twice"):
        queue.check()
