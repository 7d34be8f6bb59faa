"""Pictures: where a panel puts a value, and that what is drawn is well formed."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.base.svg import Panel, bar, document, dot, frame, line, powers, text

sizes = st.floats(1e-6, 1e12)


@given(st.lists(sizes, min_size=1))
def test_powers_of_two_hold_all_values_between_the_first_and_the_last(values: list[float]) -> None:
    found = powers(values)

    assert found[0] <= min(values) and max(values) <= found[-1]
    assert all(2 * before == after for before, after in pairwise(found))


@given(sizes, st.floats(1.5, 1e6), st.floats(0.01, 0.99))
def test_equal_factors_are_equal_lengths_in_a_panel(low: float, factor: float, share: float) -> None:
    panel = Panel(10, 200, 100, 20, (low, low * factor), (1, 4))
    x, y = panel.at(low * factor**share, 2)

    assert pytest.approx(10 + 20 + 160 * share) == x
    assert pytest.approx(100 / 2) == y


def test_a_panel_of_one_value_has_it_at_the_left() -> None:
    assert (20, 50) == Panel(0, 200, 100, 20, (8, 8), (1, 4)).at(8, 2)


def test_a_picture_is_well_formed_whatever_it_says() -> None:
    panel = Panel(0, 200, 100, 20, (1, 4), (1, 4))
    shapes = [*panel.grid({1: "<1", 4: "4 & more"}, {2: "two"}), text((0, 0), '"a" < b'), bar((0, 0), 3, 4, "red"),
              bar((0, 0), 3, 4, "red", "c & d"), frame((0, 0), 3, 4), dot((1, 1), "red"), dot((1, 1), "red", "a < b"),
              line([(0, 0), (1, 1)], is_dashed=True)]  # fmt: skip
    drawn = list(ElementTree.fromstring(document(200, 100, shapes)).itertext())

    assert {"<1", "4 & more", "two", '"a" < b', "a < b", "c & d"} <= set(drawn)
