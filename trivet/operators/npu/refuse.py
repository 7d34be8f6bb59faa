"""Refusals that several families share. Each is a sentence that says what is and what the device's operator takes."""

from __future__ import annotations

from collections.abc import Iterable

from trivet.base.dtypes import DType
from trivet.operators.contract import Call, operator_named

FLOATS: tuple[DType, ...] = ("float16", "bfloat16", "float32")
HALVES: tuple[DType, ...] = ("float16", "bfloat16")


def formats(call: Call) -> dict[str, DType | None]:
    """The format of every argument that is there, by its name in the contract."""
    contract = operator_named(call.operator)
    named = [*zip(contract.inputs, call.inputs, strict=True), *zip(contract.outputs, call.outputs, strict=False)]
    return {argument.name: spec.dtype for argument, spec in named if spec is not None}


def refuse_formats(call: Call, names: Iterable[str], allowed: tuple[DType, ...] = FLOATS) -> str | None:
    """Unless the arguments named share one of the formats allowed."""
    given = formats(call)
    named = {name: given[name] for name in names}
    for name, dtype in named.items():
        if dtype not in allowed:
            return f"{name} is {dtype}, the operator takes {', '.join(allowed)}"
    if len(set(named.values())) > 1:
        return f"{', '.join(f'{name} is {dtype}' for name, dtype in named.items())}: the operator takes one format"
    return None


def refuse_cache(call: Call) -> str | None:
    """A cache in int8 would be widened as a whole in every step, so that it cost time and saved none."""
    return "cache is int8, an NPU keeps it in float32 or bfloat16" if formats(call).get("cache") == "int8" else None


def refuse_heads(call: Call, number: int, head_dim: int) -> str | None:
    """Unless input `number` is a whole number of heads wide."""
    width, name = width_of(call, number), operator_named(call.operator).inputs[number].name
    return f"{name} is {width} wide, not a multiple of head_dim {head_dim}" if width % head_dim else None


def width_of(call: Call, number: int) -> int:
    """The last axis of input `number`."""
    spec = call.inputs[number]
    assert spec is not None
    width = spec.axes[-1]
    assert isinstance(width, int)
    return width
