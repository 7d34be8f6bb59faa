"""Reading what a Triton kernel must know from a call: dtypes and widths of its operands."""

from __future__ import annotations

from trivet.base.dtypes import DType
from trivet.operators.contract import Call, TensorSpec


def operand(call: Call, index: int) -> TensorSpec:
    """The input at `index`, which the contract says is there."""
    spec = call.inputs[index]
    assert spec is not None, f"{call.operator}: input {index} is absent"
    return spec


def activation(call: Call, index: int) -> DType:
    dtype = operand(call, index).dtype
    assert dtype is not None, f"{call.operator}: input {index} has no dtype yet"
    return dtype


def width(call: Call, index: int) -> int:
    """The size of an input's last axis, which every kernel is compiled for."""
    axis = operand(call, index).axes[-1]
    assert isinstance(axis, int), f"{call.operator}: the last axis of input {index} is {axis}, not a number"
    return axis
