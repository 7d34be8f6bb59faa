"""Operators that move or combine single elements: silu_mul, add, take_rows, embed. Rows are cut into blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from trivet.operators.contract import Call
from trivet.operators.triton.launch import Bind, Kernel, Launch, Size, Stride, by_name, power_of_two
from trivet.operators.triton.operands import activation, width
from trivet.operators.triton.tiles import Soc, tile


@triton.jit(do_not_specialize=["num_tokens"])
def silu_mul_kernel(
    gate: tl.tensor,  # [num_tokens, WIDTH], as up and y
    up: tl.tensor,
    y: tl.tensor,
    num_tokens: tl.tensor,
    gate_stride: tl.tensor,
    up_stride: tl.tensor,
    y_stride: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        row = tl.cast(token, tl.int64)
        for first in range(0, WIDTH, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < WIDTH
            left = tl.load(gate + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
            right = tl.load(up + row * up_stride + column, mask=inside, other=0.0).to(tl.float32)
            # exp overflows to infinity for very negative gates and the quotient is the zero it should be.
            values = left / (1.0 + tl.exp(-left)) * right
            tl.store(y + row * y_stride + column, values.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_tokens"])
def add_kernel(
    a: tl.tensor,  # [num_tokens, WIDTH], as b and y
    b: tl.tensor,
    y: tl.tensor,
    num_tokens: tl.tensor,
    a_stride: tl.tensor,
    b_stride: tl.tensor,
    y_stride: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        row = tl.cast(token, tl.int64)
        for first in range(0, WIDTH, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < WIDTH
            left = tl.load(a + row * a_stride + column, mask=inside, other=0.0).to(tl.float32)
            right = tl.load(b + row * b_stride + column, mask=inside, other=0.0).to(tl.float32)
            tl.store(y + row * y_stride + column, (left + right).to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def take_rows_kernel(
    table: tl.tensor,  # [rows of the table, WIDTH]
    rows: tl.tensor,  # [num_rows]
    y: tl.tensor,  # [num_rows, WIDTH], in the table's dtype or a wider one
    num_rows: tl.tensor,
    table_stride: tl.tensor,
    y_stride: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    for index in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        source = tl.load(rows + index).to(tl.int64)  # a vocabulary of 152 064 rows of 16 384 passes 2³¹ elements
        target = tl.cast(index, tl.int64)
        for first in range(0, WIDTH, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < WIDTH
            values = tl.load(table + source * table_stride + column, mask=inside, other=0.0)
            tl.store(y + target * y_stride + column, values.to(y.dtype.element_ty), mask=inside)


def _pair(kernel: Any, left: str, right: str) -> Bind:
    def launch(call: Call, sizes: Mapping[str, int], soc: Soc) -> Launch:
        chosen = tile(call.operator, activation(call, 0))
        arguments = by_name(left, right, "y", strides=(left, right, "y")) | {"num_tokens": Size(left)}
        return Launch(kernel, soc.programs(chosen.kind), arguments, _columns(call, 0))

    return launch


def _rows(table: str, rows: str, table_index: int) -> Bind:
    def launch(call: Call, sizes: Mapping[str, int], soc: Soc) -> Launch:
        chosen = tile(call.operator, activation(call, table_index))
        arguments = by_name("y", strides=("y",))
        arguments |= {"table": table, "table_stride": Stride(table), "rows": rows, "num_rows": Size(rows)}
        return Launch(take_rows_kernel, soc.programs(chosen.kind), arguments, _columns(call, table_index))

    return launch


def _columns(call: Call, index: int) -> dict[str, int]:
    elements = tile(call.operator, activation(call, index)).sizes["elements"]
    return {"WIDTH": width(call, index), "BLOCK": min(power_of_two(width(call, index)), elements)}


def _take_any(call: Call) -> str | None:
    return None


KERNELS = (
    Kernel("silu_mul", _take_any, _pair(silu_mul_kernel, "gate", "up")),
    Kernel("add", _take_any, _pair(add_kernel, "a", "b")),
    Kernel("take_rows", _take_any, _rows("x", "rows", 0)),
    Kernel("embed", _take_any, _rows("table", "tokens", 1)),
)
