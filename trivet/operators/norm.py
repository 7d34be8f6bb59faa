"""Root-mean-square normalisation, alone and after a residual addition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from trivet.base.dtypes import Array
from trivet.operators.contract import FLOATS, Argument, Call, Operator, Sample, Tolerance, register
from trivet.operators.cpu import implement_kernel
from trivet.operators.samples import ROWS, WIDTHS, normal, spec

_TOLERANCE = Tolerance(1e-6, 4e-6, "a float32 sum of squares in 16 lanes, one square root, one division")


def _normalise(x: Array, weight: Array, epsilon: float) -> Array:
    groups = x.reshape(x.shape[0], -1, weight.shape[0])
    scale = 1 / np.sqrt((groups**2).mean(axis=-1, keepdims=True) + epsilon)
    return np.asarray(groups * scale * weight).reshape(x.shape)


def _rms_norm(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    x, weight = inputs
    assert x is not None and weight is not None
    return [_normalise(x, weight, call.number("epsilon"))]


def _add_rms_norm(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    a, b, weight = inputs
    assert a is not None and b is not None and weight is not None
    return [a + b, _normalise(a + b, weight, call.number("epsilon"))]


def _add_rms_norm_cast(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    total, y = _add_rms_norm(call, inputs)
    return [total, y, y]


def _rms_norm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, size in zip(ROWS * 2, (*WIDTHS, 576, 16, 64), strict=True):
        for num_groups in (1, 3):
            x = spec(("tokens", num_groups * size), "float32")
            call = Call("rms_norm", (x, spec((size,), "float32")), (x,), {"epsilon": 1e-5})
            values = normal(rng, (num_tokens, num_groups * size), "float32", 3.0)
            yield Sample(call, (values, normal(rng, (size,), "float32")), {"tokens": num_tokens})


def _add_rms_norm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, size in zip((*ROWS, 5), WIDTHS, strict=True):
        x = spec(("tokens", size), "float32")
        call = Call("add_rms_norm", (x, x, spec((size,), "float32")), (x, x), {"epsilon": 1e-6})
        a, b = normal(rng, (num_tokens, size), "float32"), normal(rng, (num_tokens, size), "float32")
        yield Sample(call, (a, b, normal(rng, (size,), "float32")), {"tokens": num_tokens})


def _add_rms_norm_cast_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, size in zip((*ROWS, 5), WIDTHS, strict=True):
        for dtype in FLOATS:
            x = spec(("tokens", size), "float32")
            outputs = (x, spec(("tokens", size), dtype), x)
            call = Call("add_rms_norm_cast", (x, x, spec((size,), "float32")), outputs, {"epsilon": 1e-6})
            a, b = normal(rng, (num_tokens, size), "float32"), normal(rng, (num_tokens, size), "float32")
            yield Sample(call, (a, b, normal(rng, (size,), "float32")), {"tokens": num_tokens})


def _flops(call: Call, sizes: Mapping[str, int]) -> int:
    return 4 * call.outputs[0].bytes(sizes) // 4


def _size(call: Call) -> int:
    weight = call.inputs[-1]
    assert weight is not None and isinstance(weight.axes[0], int)
    return weight.axes[0]


def _groups(call: Call) -> int:
    width = call.outputs[0].axes[1]
    assert isinstance(width, int)
    return width // _size(call)


def _refuse_uneven(call: Call) -> str | None:
    width = call.outputs[0].axes[1]
    assert isinstance(width, int)
    return None if width % _size(call) == 0 else f"width {width} is not a multiple of the weight's {_size(call)}"


register(
    Operator(
        name="rms_norm",
        summary="x / √(mean(x²) + ε) · weight over each group of `size` elements of a row",
        inputs=(Argument("x", ("tokens", "width")), Argument("weight", ("size",), ("float32",))),
        outputs=(Argument("y", ("tokens", "width")),),
        attributes=("epsilon",),
        reference=_rms_norm,
        samples=_rms_norm_samples,
        tolerance=_TOLERANCE,
        flops=_flops,
    )
)
register(
    Operator(
        name="add_rms_norm",
        summary="s = a + b, and s normalised: the residual addition and the norm that follows it, read once",
        inputs=(
            Argument("a", ("tokens", "width")),
            Argument("b", ("tokens", "width")),
            Argument("weight", ("width",), ("float32",)),
        ),
        outputs=(Argument("sum", ("tokens", "width")), Argument("y", ("tokens", "width"))),
        attributes=("epsilon",),
        reference=_add_rms_norm,
        samples=_add_rms_norm_samples,
        tolerance=_TOLERANCE,
        flops=_flops,
    )
)
register(
    Operator(
        name="add_rms_norm_cast",
        summary="as add_rms_norm, and y once more in float32 before it is rounded: what a router of experts reads",
        inputs=(
            Argument("a", ("tokens", "width")),
            Argument("b", ("tokens", "width")),
            Argument("weight", ("width",), ("float32",)),
        ),
        outputs=(
            Argument("sum", ("tokens", "width")),
            Argument("y", ("tokens", "width")),
            Argument("wide", ("tokens", "width"), ("float32",)),
        ),
        attributes=("epsilon",),
        reference=_add_rms_norm_cast,
        samples=_add_rms_norm_cast_samples,
        tolerance=_TOLERANCE,
        flops=_flops,
    )
)

implement_kernel(
    "rms_norm",
    ("x", "weight", "y"),
    integers=lambda call, sizes: (_groups(call), _size(call)),
    numbers=lambda call: (call.number("epsilon"),),
    refuse=_refuse_uneven,
)
implement_kernel(
    "add_rms_norm",
    ("a", "b", "weight", "sum", "y"),
    integers=lambda call, sizes: (_size(call),),
    numbers=lambda call: (call.number("epsilon"),),
)
implement_kernel(
    "add_rms_norm_cast",
    ("a", "b", "weight", "sum", "y", "wide"),
    integers=lambda call, sizes: (_size(call),),
    numbers=lambda call: (call.number("epsilon"),),
)
