"""Of blocks that are given up, how many are wanted again in time: counted by name, whatever became of their bytes."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.framework.memory import demand
from trivet.framework.memory.chain import Chain, Identity
from trivet.framework.memory.demand import Demand

LINKS = Chain(Identity(b"m" * 32, b"l" * 32), "").extend(array("i", range(9)), 1, 9)
acts = st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=60)


@given(acts, st.integers(1, 6))
def test_the_share_is_of_those_whose_fate_is_known_and_a_fate_is_that_of_a_tier_which_keeps_all(asked, num_blocks):
    found, kept, fates = Demand(num_blocks), [], []
    for is_given_up, number in asked:
        if is_given_up:
            found.give_up(LINKS[number])
            kept = [each for each in kept if each != number] + [number]
            if len(kept) > num_blocks:
                del kept[0]
                fates.append(0)
        else:
            found.want([LINKS[number]])
            if number in kept:
                kept.remove(number)
                fates.append(1)

    wanted = None
    for fate in fates:
        wanted = float(fate) if wanted is None else wanted + (fate - wanted) / 2048
    assert (None if wanted is None else pytest.approx(wanted)) == found.share


def test_a_block_is_of_no_use_without_those_before_it():
    found = Demand(9)
    for link in (LINKS[0], LINKS[2]):
        found.give_up(link)
    found.want(LINKS)
    assert 1.0 == found.share

    found.want(LINKS[2:])  # it is still there
    found.give_up(LINKS[1])
    assert 1.0 == found.share


def test_what_was_once_wanted_is_forgotten_when_it_is_not_any_more(monkeypatch):
    monkeypatch.setattr(demand, "_WEIGHT", 0.5)
    found = Demand(1)
    found.give_up(LINKS[0])
    found.want(LINKS)
    for link in LINKS[1:]:
        found.give_up(link)

    assert 0.5**7 == found.share
