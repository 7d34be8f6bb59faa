"""bfloat16 is float32 cut to 16 bits, rounded to nearest even; nothing turns into something else on the way."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trivet.base.dtypes import cast

ALL_BFLOAT16 = np.arange(2**16, dtype=np.uint32).astype(np.uint16)


def test_every_bfloat16_survives_a_trip_through_float32() -> None:
    values = cast(ALL_BFLOAT16, "bfloat16", "float32")
    again = cast(values, "float32", "bfloat16")
    numbers = ~np.isnan(values)

    assert np.array_equal(ALL_BFLOAT16[numbers], again[numbers])
    assert np.isnan(cast(again[~numbers], "bfloat16", "float32")).all()


@given(st.floats(width=32, allow_nan=False))
def test_rounding_goes_to_the_nearest_and_to_even_in_a_tie(value: float) -> None:
    exact = np.float32(value)
    rounded = int(cast(np.array([exact]), "float32", "bfloat16")[0])
    neighbours = {(int(exact.view(np.uint32)) >> 16) + step for step in (0, 1)} - {0x10000}
    with np.errstate(over="ignore"):
        distances = {
            bits: abs(float(cast(np.array([bits], np.uint16), "bfloat16", "float32")[0]) - float(exact))
            for bits in neighbours
            if np.isfinite(cast(np.array([bits], np.uint16), "bfloat16", "float32")[0])
        }
    if distances and np.isfinite(cast(np.array([rounded], np.uint16), "bfloat16", "float32")[0]):
        nearest = min(distances.values())
        allowed = {bits for bits, distance in distances.items() if distance == nearest}
        assert rounded in allowed
        if len(allowed) == 2:
            assert rounded % 2 == 0
