"""The number formats tensors are stored in, and the exact conversions between them.

NumPy has no bfloat16: an array of bfloat16 is an array of `uint16` whose dtype name travels beside it.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

DType = Literal["float32", "bfloat16", "float16", "float64", "int32", "int64", "uint8"]
DTYPES: tuple[DType, ...] = get_args(DType)

Array = npt.NDArray[Any]

_STORAGE: dict[DType, type[np.generic]] = {
    "float32": np.float32,
    "bfloat16": np.uint16,
    "float16": np.float16,
    "float64": np.float64,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
}


def storage(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype whose elements hold `dtype`."""
    return np.dtype(_STORAGE[dtype])


def item_bytes(dtype: DType) -> int:
    return int(storage(dtype).itemsize)


def cast(array: Array, source: DType, target: DType) -> Array:
    """`array`, stored as `source`, as `target`; to bfloat16 by rounding to nearest, ties to even."""
    if source == target:
        return array
    wide = _from_bfloat16(array) if source == "bfloat16" else array
    return _to_bfloat16(wide) if target == "bfloat16" else wide.astype(storage(target))


def _from_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(values: Array) -> Array:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    # Adding the rounding bias to a NaN with a low payload could carry it into infinity: keep it quiet instead.
    quiet = (bits >> 16) | np.uint32(0x0040)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, quiet, rounded).astype(np.uint16)
