"""Operators that move or combine single elements: embed, add, silu_mul, take_rows, split, cast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from trivet.base.dtypes import Array, row_bytes
from trivet.base.errors import GraphError
from trivet.operators.contract import (
    FLOATS,
    WEIGHTS,
    Argument,
    Attribute,
    Axis,
    Call,
    Layout,
    Operator,
    Sample,
    Tolerance,
    register,
    resolve,
)
from trivet.operators.cpu import implement_kernel
from trivet.operators.samples import ROWS, WIDTHS, normal, spec

_TABLE_LAYOUTS: tuple[Layout, ...] = ("rows", "panels")
_EXACT = Tolerance(0.0, 0.0, "copies and single roundings")


def _embed(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    tokens, table = inputs
    assert tokens is not None and table is not None
    return [table[tokens]]


def _embed_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, hidden in ((1, 1), (3, 33), (17, 64)):
        for dtype in WEIGHTS:
            for layout in _TABLE_LAYOUTS:
                table = spec((70, hidden), dtype, layout)
                out = spec(("tokens", hidden), "float32")
                call = Call("embed", (spec(("tokens",), "int32"), table), (out,))
                tokens = rng.integers(0, 70, num_tokens).astype(np.int32)
                yield Sample(call, (tokens, normal(rng, (70, hidden), dtype)), {"tokens": num_tokens})


def _embed_bytes(call: Call, sizes: Mapping[str, int]) -> int:
    table, out = call.inputs[1], call.outputs[0]
    assert table is not None and table.dtype is not None
    return sizes["tokens"] * (4 + row_bytes(resolve(out.axes[1], sizes), table.dtype)) + out.bytes(sizes)


def _embed_layout(call: Call, sizes: Mapping[str, int]) -> tuple[int, ...]:
    table = call.inputs[1]
    assert table is not None
    return _width(call, sizes)[0], int(table.layout == "panels")


def _add(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    a, b = inputs
    assert a is not None and b is not None
    return [a + b]


def _silu_mul(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    gate, up = inputs
    assert gate is not None and up is not None
    return [gate / (1 + np.exp(-gate)) * up]


def _pair_samples(operator: str) -> Iterator[tuple[Call, int, int]]:
    for num_tokens, width in zip((*ROWS, 5), WIDTHS, strict=True):
        x = spec(("tokens", width), "float32")
        yield Call(operator, (x, x), (x,)), num_tokens, width


def _add_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for call, num_tokens, width in _pair_samples("add"):
        a, b = (normal(rng, (num_tokens, width), "float32") for _ in range(2))
        yield Sample(call, (a, b), {"tokens": num_tokens})


def _silu_mul_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for call, num_tokens, width in _pair_samples("silu_mul"):
        gate, up = normal(rng, (num_tokens, width), "float32", 8.0), normal(rng, (num_tokens, width), "float32")
        gate.reshape(-1)[0] = -200.0  # where exp overflows the product is zero, never NaN
        yield Sample(call, (gate, up), {"tokens": num_tokens})


def _take_rows(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    x, rows = inputs
    assert x is not None and rows is not None
    return [x[rows]]


def _take_rows_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, width in zip((*ROWS, 5), WIDTHS, strict=True):
        rows = np.unique(rng.integers(0, num_tokens, num_tokens)).astype(np.int32)
        x = spec(("tokens", width), "float32")
        call = Call("take_rows", (x, spec(("rows",), "int32")), (spec(("rows", width), "float32"),))
        sizes = {"tokens": num_tokens, "rows": len(rows)}
        yield Sample(call, (normal(rng, (num_tokens, width), "float32"), rows), sizes)


def _take_rows_bytes(call: Call, sizes: Mapping[str, int]) -> int:
    return 2 * call.outputs[0].bytes(sizes) + 4 * sizes["rows"]


def _split(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    (x,) = inputs
    assert x is not None
    widths = [spec.axes[1] for spec in call.outputs]
    return list(np.split(x, np.cumsum([resolve(width, {}) for width in widths])[:-1], axis=1))


def _split_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for first, second, third in ((1, 1, 1), (33, 15, 16)):
        outputs = tuple(spec(("tokens", width), "float32") for width in (first, second, third))
        whole = spec(("tokens", first + second + third), "float32")
        call = Call("split", (whole,), outputs, {"widths": (first, second, third)})
        yield Sample(call, (normal(rng, (3, first + second + third), "float32"),), {"tokens": 3})


def _split_widths(sizes: Mapping[str, Axis], attributes: Mapping[str, Attribute]) -> Mapping[str, Axis]:
    widths = attributes["widths"]
    assert isinstance(widths, tuple)
    if sum(widths) != sizes["width"]:
        raise GraphError(f"split: widths {widths} add up to {sum(widths)}, x has {sizes['width']}")
    return {f"width{i}": width for i, width in enumerate(widths)}


def _cast(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    (x,) = inputs
    assert x is not None
    return [x]


def _cast_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for source, target in (FLOATS, FLOATS[::-1]):
        for num_tokens, width in zip((*ROWS, 5), WIDTHS, strict=True):
            call = Call("cast", (spec(("tokens", width), source),), (spec(("tokens", width), target),))
            yield Sample(call, (normal(rng, (num_tokens, width), source),), {"tokens": num_tokens})


def _width(call: Call, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return (resolve(call.outputs[0].axes[1], sizes),)


def _elements(call: Call, sizes: Mapping[str, int]) -> int:
    tokens, width = call.outputs[0].axes
    return resolve(tokens, sizes) * resolve(width, sizes)


def _no_flops(call: Call, sizes: Mapping[str, int]) -> int:
    return 0


register(
    Operator(
        name="embed",
        summary="the rows of the embedding table that the tokens name",
        inputs=(
            Argument("tokens", ("tokens",), ("int32",)),
            Argument("table", ("vocab", "hidden"), WEIGHTS, _TABLE_LAYOUTS),
        ),
        outputs=(Argument("y", ("tokens", "hidden")),),
        reference=_embed,
        samples=_embed_samples,
        tolerance=_EXACT,
        flops=_no_flops,
        fewest_bytes=_embed_bytes,
    )
)
register(
    Operator(
        name="add",
        summary="a + b",
        inputs=(Argument("a", ("tokens", "width")), Argument("b", ("tokens", "width"))),
        outputs=(Argument("y", ("tokens", "width")),),
        reference=_add,
        samples=_add_samples,
        tolerance=Tolerance(0.0, 6e-8, "one float32 rounding"),
        flops=_elements,
    )
)
register(
    Operator(
        name="silu_mul",
        summary="gate · sigmoid(gate) · up",
        inputs=(Argument("gate", ("tokens", "width")), Argument("up", ("tokens", "width"))),
        outputs=(Argument("y", ("tokens", "width")),),
        reference=_silu_mul,
        samples=_silu_mul_samples,
        tolerance=Tolerance(1e-30, 1e-6, "exp to 2e-7, three float32 roundings"),
        flops=lambda call, sizes: 5 * _elements(call, sizes),
    )
)
register(
    Operator(
        name="take_rows",
        summary="the rows of x whose results are wanted",
        inputs=(Argument("x", ("tokens", "width")), Argument("rows", ("rows",), ("int32",))),
        outputs=(Argument("y", ("rows", "width")),),
        reference=_take_rows,
        samples=_take_rows_samples,
        tolerance=_EXACT,
        flops=_no_flops,
        fewest_bytes=_take_rows_bytes,
    )
)
register(
    Operator(
        name="split",
        summary="the columns of x as parts side by side; no byte moves",
        inputs=(Argument("x", ("tokens", "width")),),
        outputs=tuple(Argument(f"part{i}", ("tokens", f"width{i}"), is_optional=i > 1) for i in range(3)),
        attributes=("widths",),
        reference=_split,
        samples=_split_samples,
        tolerance=_EXACT,
        flops=_no_flops,
        infer=_split_widths,
        is_view=True,
    )
)
register(
    Operator(
        name="cast",
        summary="x in another number format, rounded to nearest even",
        inputs=(Argument("x", ("tokens", "width")),),
        outputs=(Argument("y", ("tokens", "width")),),
        reference=_cast,
        samples=_cast_samples,
        tolerance=_EXACT,
        flops=_no_flops,
    )
)

implement_kernel("embed", ("tokens", "table", "y"), integers=_embed_layout)
implement_kernel("add", ("a", "b", "y"), integers=_width)
implement_kernel("silu_mul", ("gate", "up", "y"), integers=_width)
implement_kernel("take_rows", ("x", "rows", "y"), integers=_width)
implement_kernel("cast", ("x", "y"), integers=_width)
