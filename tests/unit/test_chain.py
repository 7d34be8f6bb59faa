from array import array

from hypothesis import example, given
from hypothesis import strategies as st

from trivet.framework.memory.chain import Chain, Identity

ANY_TEXT = st.text(st.integers(0, 0x10FFFF).map(chr), max_size=3)  # halves of characters too


def first_name(salt):
    return Chain(Identity(b"m" * 32, b"l" * 32), salt).extend(array("i", [1]), 1, 1)[0].name


@given(ANY_TEXT, ANY_TEXT)
@example("é", "\udcc3\udca9")
@example("\ud800", "")
def test_two_salts_share_a_name_if_they_are_one(one, other):
    assert (one == other) == (first_name(one) == first_name(other))
