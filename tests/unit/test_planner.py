import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.framework.memory.planner import Lifetime, Placement, place


def test_values_that_never_meet_share_their_bytes():
    chain = [Lifetime(f"v{i}", 1000, i, i + 1) for i in range(10)]

    assert 2 * 1024 == place(chain).total_bytes


def test_a_small_value_goes_into_the_tightest_hole():
    sizes = {"a": (512, 9), "wide": (384, 1), "b": (320, 9), "narrow": (256, 1), "c": (192, 9)}
    lifetimes = [Lifetime(name, size, 0, last) for name, (size, last) in sizes.items()]
    lifetimes.append(Lifetime("late", 130, 2, 9))  # wide and narrow are gone by then; the first hole is wide's
    placement = place(lifetimes)

    placement.check(lifetimes)
    assert placement.offsets["narrow"] == placement.offsets["late"]


def test_overlap_is_found_by_the_check():
    lifetimes = [Lifetime("a", 64, 0, 1), Lifetime("b", 64, 1, 2)]
    with pytest.raises(AssertionError, match="b overlaps a"):
        Placement({"a": 0, "b": 32}, 128).check(lifetimes)


values = st.builds(
    lambda size, first, length: (size, first, first + length),
    st.integers(0, 5000),
    st.integers(0, 20),
    st.integers(0, 20),
)


@given(st.lists(values, max_size=30), st.sampled_from([1, 64, 4096]), st.sampled_from([0, 1, 64]))
def test_values_alive_together_never_overlap_and_every_offset_is_aligned(sizes, alignment, guard):
    lifetimes = [Lifetime(f"v{i}", *fields) for i, fields in enumerate(sizes)]
    placement = place(lifetimes, alignment, guard)

    placement.check(lifetimes, guard)
    assert all(offset % alignment == 0 for offset in placement.offsets.values())
    assert placement.total_bytes <= sum(value.num_bytes + guard + alignment for value in lifetimes)
