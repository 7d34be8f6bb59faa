"""bfloat16 is float32 cut to 16 bits, rounded to nearest even; int8 is integers and the scales of their groups; nothing
turns into something else on the way."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trivet.base.dtypes import GROUP, cast, integers_and_scales, row_bytes

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


@given(rows=st.integers(1, 4), width=st.integers(1, 300), exponent=st.integers(-30, 30), seed=st.integers(0, 2**32 - 1))
def test_int8_is_within_half_a_step_of_its_group_and_reading_it_rounds_nothing(
    rows: int, width: int, exponent: int, seed: int
) -> None:
    values = (np.random.default_rng(seed).standard_normal((rows, width)) * 2.0**exponent).astype(np.float32)
    stored = cast(values, "float32", "int8")
    integers, scales = integers_and_scales(stored)
    steps = np.repeat(cast(scales, "bfloat16", "float32"), GROUP, axis=1)[:, :width]
    read = cast(stored, "int8", "float32")

    assert (rows, row_bytes(width, "int8")) == stored.shape
    assert np.array_equal(read.astype(np.float64), integers.astype(np.float64) * steps.astype(np.float64))
    assert (np.abs(read - values) <= np.float32(0.5001) * steps).all()


def test_a_group_of_zeros_is_zero_and_one_with_a_number_that_is_not_finite_is_nan() -> None:
    values = np.ones((1, 3 * GROUP), np.float32)
    values[0, :GROUP] = 0
    values[0, GROUP + 1] = np.inf
    zeros, spoilt, ones = np.split(cast(cast(values, "float32", "int8"), "int8", "float32"), 3, axis=1)

    assert (0 == zeros).all()
    assert np.isnan(spoilt).all()
    assert np.allclose(1, ones, rtol=2**-8)
