"""What the instructions of the vector pipe compute, in float32 where they compute in float at all.

Sums are in NumPy's order, not the hardware's: agreement with a reference is within a tolerance, never in bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ascend.hivm.program import HivmError, Operation, memory
from trivet.base.dtypes import Array

_ELEMENTWISE: dict[str, Callable[..., Array]] = {
    "hivm.hir.vadd": np.add,
    "hivm.hir.vsub": np.subtract,
    "hivm.hir.vmul": np.multiply,
    "hivm.hir.vdiv": np.divide,
    "hivm.hir.vmax": np.maximum,
    "hivm.hir.vmin": np.minimum,
    "hivm.hir.vand": np.bitwise_and,
    "hivm.hir.vnot": np.invert,
    "hivm.hir.vsel": np.where,
    "hivm.hir.vexp": np.exp,
    "hivm.hir.vsqrt": np.sqrt,
}
_REDUCTIONS: dict[str, Callable[..., Array]] = {"sum": np.sum, "max": np.max, "min": np.min}
_COMPARISONS: dict[str, Callable[..., Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_OTHERS = ("hivm.hir.copy", "hivm.hir.vbrc", "hivm.hir.vcast", "hivm.hir.vcmp", "hivm.hir.vreduce")
_PROPERTIES = frozenset(
    ("arith", "broadcast", "broadcast_dims", "cast", "compare_mode", "operandSegmentSizes", "reduce_dims", "round_mode")
)
NAMES = frozenset((*_ELEMENTWISE, *_OTHERS))


def compute(operation: Operation, inputs: list[Array]) -> Array:
    """The values an instruction leaves in its output, before they are rounded to it. Raises HivmError."""
    name = operation.name
    for key in operation.properties.keys() - _PROPERTIES:
        _refuse(operation, key, "array<i64>" if key == "transpose" else "absent")
    if name in _ELEMENTWISE:
        with np.errstate(all="ignore"):
            return _ELEMENTWISE[name](*inputs)
    if name == "hivm.hir.vreduce":
        axes = tuple(axis for axis in operation.integers("reduce_dims") if axis is not None)
        return _known(_REDUCTIONS, operation, "arith")(inputs[0], axis=axes, keepdims=True)
    if name == "hivm.hir.vcmp":
        return _known(_COMPARISONS, operation, "compare_mode")(*inputs)
    if name == "hivm.hir.vcast":
        _refuse(operation, "cast", "#hivm.cast<cast_signed>")
        if inputs[0].dtype != np.bool_:  # there is nothing to round in a truth value
            return _rounded(operation, inputs[0])
    return inputs[0]


def _rounded(operation: Operation, numbers: Array) -> Array:
    """A float on its way to an integer; between other types only rounding to nearest is known, where it is stored."""
    if numbers.dtype.kind == "f" and memory(operation.operand_types[1]).element.startswith("i"):
        return _known({"rint": np.rint, "trunc": np.trunc}, operation, "round_mode")(numbers)
    _refuse(operation, "round_mode", "#hivm.round_mode<rint>")
    return numbers


def _known(table: dict[str, Callable[..., Array]], operation: Operation, key: str) -> Callable[..., Array]:
    word = operation.word(key)
    if word not in table:
        raise HivmError(f"line {operation.line}: {operation.name} with {key} {word} is not known here")
    return table[word]


def _refuse(operation: Operation, key: str, known: str) -> None:
    value = operation.properties.get(key, known)
    if value != known:
        raise HivmError(f"line {operation.line}: {operation.name} with {key} {value} is not known here")
