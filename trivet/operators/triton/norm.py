"""Root-mean-square normalisation over rows or groups of a row, alone and after a residual addition.

Statistics are float32 whatever the operands are; a row is summed in one order that depends on its width alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from trivet.operators.contract import Call
from trivet.operators.triton.launch import Kernel, Launch, Size, Stride, by_name, power_of_two
from trivet.operators.triton.operands import activation, width
from trivet.operators.triton.tiles import Soc, tile


@triton.jit(do_not_specialize=["num_tokens"])
def rms_norm_kernel(
    x: tl.tensor,  # [num_tokens, NUM_GROUPS · SIZE]
    weight: tl.tensor,  # [SIZE]
    y: tl.tensor,  # [num_tokens, NUM_GROUPS · SIZE]
    num_tokens: tl.tensor,
    x_stride: tl.tensor,
    y_stride: tl.tensor,
    epsilon: tl.tensor,
    NUM_GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    GROUPS: tl.constexpr,  # groups held at once
    BLOCK: tl.constexpr,
) -> None:
    group = tl.arange(0, GROUPS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    scale = tl.load(weight + column, mask=column < SIZE, other=0.0).to(tl.float32)
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        row = tl.cast(token, tl.int64)  # token · stride passes 2³¹ for a long prefill of wide rows
        for first in range(0, NUM_GROUPS, GROUPS):
            inside = (first + group < NUM_GROUPS) & (column < SIZE)
            at = (first + group) * SIZE + column
            values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
            mean = tl.sum(values * values, axis=1) / SIZE
            normal = values * (1.0 / tl.sqrt(mean + epsilon))[:, None] * scale
            tl.store(y + row * y_stride + at, normal.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_tokens"])
def add_rms_norm_kernel(
    a: tl.tensor,  # [num_tokens, WIDTH], as b, total and y
    b: tl.tensor,
    weight: tl.tensor,  # [WIDTH]
    total: tl.tensor,
    y: tl.tensor,
    num_tokens: tl.tensor,
    a_stride: tl.tensor,
    b_stride: tl.tensor,
    total_stride: tl.tensor,
    y_stride: tl.tensor,
    epsilon: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        row = tl.cast(token, tl.int64)
        left = tl.load(a + row * a_stride + column, mask=inside, other=0.0).to(tl.float32)
        right = tl.load(b + row * b_stride + column, mask=inside, other=0.0).to(tl.float32)
        values = left + right
        tl.store(total + row * total_stride + column, values.to(total.dtype.element_ty), mask=inside)
        # The sum is normalised as it was before it was rounded for the residual: one rounding less in y.
        mean = tl.sum(values * values, axis=0) / WIDTH
        normal = values * (1.0 / tl.sqrt(mean + epsilon)) * scale
        tl.store(y + row * y_stride + column, normal.to(y.dtype.element_ty), mask=inside)


def _rms_norm(call: Call, sizes: Mapping[str, int], soc: Soc) -> Launch:
    size, chosen = _size(call), tile("rms_norm", activation(call, 0))
    block, num_groups = power_of_two(size), width(call, 0) // size
    arguments = by_name("x", "weight", "y", strides=("x", "y"))
    arguments |= {"num_tokens": Size("x"), "epsilon": call.number("epsilon")}
    groups = min(power_of_two(num_groups), chosen.sizes["elements"] // block)
    constants = {"NUM_GROUPS": num_groups, "SIZE": size, "GROUPS": groups, "BLOCK": block}
    return Launch(rms_norm_kernel, soc.programs(chosen.kind), arguments, constants)


def _add_rms_norm(call: Call, sizes: Mapping[str, int], soc: Soc) -> Launch:
    size, chosen = _size(call), tile("add_rms_norm", activation(call, 0))
    arguments = by_name("a", "b", "weight", "y", strides=("a", "b", "y"))
    arguments |= {"total": "sum", "total_stride": Stride("sum")}
    arguments |= {"num_tokens": Size("a"), "epsilon": call.number("epsilon")}
    constants = {"WIDTH": size, "BLOCK": power_of_two(size)}
    return Launch(add_rms_norm_kernel, soc.programs(chosen.kind), arguments, constants)


def _size(call: Call) -> int:
    weight = call.inputs[-1]
    assert weight is not None and isinstance(weight.axes[0], int)
    return weight.axes[0]


def _refuse(call: Call) -> str | None:
    size, whole = _size(call), width(call, 0)
    elements = tile(call.operator, activation(call, 0)).sizes["elements"]
    if whole % size:
        return f"width {whole} is not a multiple of the weight's {size}"
    if power_of_two(size) > elements:
        return f"a row of {size} does not fit the tile of {elements} elements"
    return None


KERNELS = (Kernel("rms_norm", _refuse, _rms_norm), Kernel("add_rms_norm", _refuse, _add_rms_norm))
