from hypothesis import given
from hypothesis import strategies as st

from tests.unit.waiting import waiting
from trivet.framework.engine.deadlines import Deadlines


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.booleans()), max_size=200), st.integers(0, 20))
def test_those_whose_time_is_over_are_told_in_its_order_and_once(asked, now):
    deadlines = Deadlines()
    expected = []
    for order, (until, num_choices, has_ended) in enumerate(asked):
        choices = [waiting(order, 1) for _ in range(num_choices)]
        deadlines.add(until, choices)
        if has_ended:
            choices.clear()
        expected += [(until, order, each) for each in choices if until <= now]

    assert [each for _, _, each in sorted(expected, key=lambda each: each[:2])] == deadlines.overdue(now)
    assert [] == deadlines.overdue(now)


def test_what_has_ended_is_not_kept_until_its_time():
    deadlines = Deadlines()
    for order in range(10_000):
        choices = [waiting(order, 1)]
        deadlines.add(1e9, choices)
        if order % 100:
            choices.clear()

    assert 100 <= len(deadlines) <= 300
