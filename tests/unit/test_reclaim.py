from array import array
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.framework.memory.chain import Chain, Identity
from trivet.framework.memory.reclaim import LeastCost, LeastRecent

IDENTITY = Identity(b"m" * 32, b"l" * 32)


def chain(*tokens):
    """The names of slots of one token each."""
    return Chain(IDENTITY, "").extend(array("i", tokens), 1, len(tokens))


def turn_cold(policy, slots, names):
    for depth in reversed(range(len(slots))):
        policy.add(slots[depth], names[depth], depth)


def taken(policy):
    return [policy.take() for _ in range(len(policy))]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=12))
def test_where_all_slots_are_equally_dear_and_none_is_wanted_twice_the_cost_is_the_time(acts):
    by_cost, by_time = LeastCost(lambda depth: 1.0), LeastRecent()
    first = 0
    for number, (length, num_taken) in enumerate(acts):
        for policy in (by_cost, by_time):
            turn_cold(policy, range(first, first + length), chain(*[100 + number] * length))
        first += length
        for _ in range(min(num_taken, len(by_time))):
            assert by_time.take() == by_cost.take()

    assert taken(by_time) == taken(by_cost)


@given(
    st.lists(st.tuples(st.sampled_from(["cold", "held", "take"]), st.lists(st.integers(0, 1), min_size=1, max_size=5)),
             max_size=40),
    st.lists(st.floats(0.1, 9), min_size=5, max_size=5),
)  # fmt: skip
def test_nothing_is_given_up_that_a_cold_slot_comes_behind(acts, costs):
    policy = LeastCost(lambda depth: costs[depth])
    slot_of = defaultdict(lambda: len(slot_of))  # a slot for every prefix there is
    names, cold = {}, {}  # by prefix; the slots that are cold, with their names
    for act, tokens in acts:
        prefixes = [tuple(tokens[: end + 1]) for end in range(len(tokens))]
        names.update(zip(prefixes, chain(*tokens), strict=True))
        if act == "cold":
            for depth in reversed(range(len(prefixes))):
                slot, name = slot_of[prefixes[depth]], names[prefixes[depth]]
                if slot not in cold:
                    policy.add(slot, name, depth)
                    cold[slot] = name
        elif act == "held":
            for prefix in prefixes:
                if cold.pop(slot_of[prefix], None):
                    policy.remove(slot_of[prefix])
        elif cold:
            name = cold.pop(policy.take())
            assert all(each.parent != name.name for each in cold.values())
        assert set(cold) == set(policy) and len(cold) == len(policy)

    assert set(cold) == set(taken(policy))


def test_what_is_dear_to_compute_again_stays_while_cheaper_ones_come_and_go_but_not_for_ever():
    policy = LeastCost(lambda depth: 1.0 + depth)
    turn_cold(policy, range(4), chain(1, 2, 3, 4))
    gone = []
    for number in range(8):
        turn_cold(policy, [4 + number], chain(50 + number))
        gone.append(policy.take())

    assert [4, 5, 6, 3, 2, 1, 0, 7] == gone


def test_what_was_wanted_again_outlives_what_came_after_it():
    policy = LeastCost(lambda depth: 1.0)
    for _ in range(2):
        turn_cold(policy, [0], chain(7))
        policy.remove(0)
    turn_cold(policy, [0], chain(7))
    turn_cold(policy, [1], chain(8))
    turn_cold(policy, [2], chain(9))

    assert [1, 2, 0] == taken(policy)


def test_a_slot_that_has_something_else_in_it_was_never_wanted():
    policy = LeastCost(lambda depth: 1.0)
    turn_cold(policy, [0], chain(7))
    policy.remove(0)
    turn_cold(policy, [0], chain(8))
    turn_cold(policy, [1], chain(9))

    assert [0, 1] == taken(policy)


@pytest.mark.parametrize("num_cold", [1, 500])
def test_a_slot_that_is_held_and_let_go_again_and_again_leaves_nothing_behind(num_cold):
    policy = LeastCost(lambda depth: 1.0)
    for slot in range(num_cold):
        turn_cold(policy, [slot], chain(100 + slot))
    for _ in range(5000):
        policy.remove(0)
        turn_cold(policy, [0], chain(100))

    assert len(policy._ends) <= 2 * num_cold + 65
    assert num_cold == len(taken(policy))
