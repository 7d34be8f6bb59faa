"""A tensor in a file: where its bytes lie and in what format, whoever's header said so; and its rows, decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from trivet.base.dtypes import Array, DType
from trivet.base.errors import CheckpointError
from trivet.framework.model.checkpoints.checkpoint import TensorEntry, read_bytes

# Formats by safetensors' names, with the bits of an element
ITEM_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64}
ITEM_BITS |= dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8)
ITEM_BITS |= dict.fromkeys(("U16", "I16", "F16", "BF16"), 16)
ITEM_BITS |= dict.fromkeys(("U32", "I32", "F32"), 32)
ITEM_BITS |= dict.fromkeys(("U64", "I64", "F64"), 64)

# More than any published tensor has. Headers may claim more, of numbers that take hours to multiply.
_MAX_AXES = 8


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, rows one after the other; `offset` counts from the start of the file."""

    name: str
    dtype: str  # in the spelling of safetensors: F32, BF16
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def are_counts(values: Sequence[Any]) -> bool:
    """Could these be what a header says they are: a shape, strides, an offset?"""
    return len(values) <= _MAX_AXES and all(type(value) is int and 0 <= value < 2**63 for value in values)


# The formats whose rows are read, and what they come as.
_READ_AS: dict[str, DType] = {"F32": "float32", "F16": "float32", "F8_E4M3": "float32", "BF16": "bfloat16"}
_STORAGE: dict[str, type[np.generic]] = {
    "F32": np.float32, "F16": np.float16, "F8_E4M3": np.uint8, "BF16": np.uint16,
}  # fmt: skip


def entry(tensor: StoredTensor) -> TensorEntry:
    return TensorEntry(tensor.name, _READ_AS.get(tensor.dtype), tensor.shape, tensor.dtype)


def read_stored_rows(file: Path, tensor: StoredTensor, start: int, stop: int) -> tuple[Array, DType]:
    """Rows [start, stop), with the dtype they are in. CheckpointError for a format that is not read here."""
    dtype = _READ_AS.get(tensor.dtype)
    if dtype is None:
        raise CheckpointError(
            f"{file}: tensor {tensor.name} is {tensor.dtype}, F32, F16 or BF16 was wanted",
            "use the checkpoint's unquantised version",
        )
    item = np.dtype(_STORAGE[tensor.dtype])
    row_bytes = prod(tensor.shape[1:]) * item.itemsize
    block = read_bytes(file, tensor.offset + start * row_bytes, (stop - start) * row_bytes)
    rows: Array = block.view(item).reshape(stop - start, *tensor.shape[1:])
    if tensor.dtype == "F8_E4M3":
        return _E4M3[rows], dtype
    return (rows.astype(np.float32) if tensor.dtype == "F16" else rows), dtype


def _e4m3_values() -> Array:
    """What each byte stands for: sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity, one NaN a sign.

    OCP 8-bit Floating Point Specification 1.0, table 1 (E4M3).
    """
    codes = np.arange(128)
    exponent, mantissa = codes >> 3, (codes & 7).astype(np.float32)
    values = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8 + mantissa, exponent - 10)).astype(np.float32)
    values[127] = np.nan
    return np.concatenate([values, -values])


_E4M3 = _e4m3_values()
