"""A matrix product with the weights of a layer: y = x · weightᵀ (+ bias)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from trivet.base.dtypes import Array, DType, rounded
from trivet.operators.contract import WEIGHTS, Argument, Axis, Call, Operator, Sample, Tolerance, register, resolve
from trivet.operators.cpu import implement_kernel
from trivet.operators.panels import refuse_rows
from trivet.operators.samples import normal, spec

_SIZES = ((1, 1, 1), (1, 64, 96), (2, 33, 31), (5, 48, 33), (7, 129, 65), (13, 576, 64), (40, 515, 100))


def _linear(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    x, weight, bias = inputs
    assert x is not None and weight is not None
    x = as_multiplied(call, x)
    return [x @ weight.T if bias is None else x @ weight.T + bias]


def as_multiplied(call: Call, x: Array) -> Array:
    """x, in float64, as it meets the weight of `call`, its second input: rounded beside bfloat16 and int8."""
    weight = call.inputs[1]
    assert weight is not None
    if weight.dtype not in ("bfloat16", "int8"):
        return x
    return rounded(x, "bfloat16")


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    dtypes: tuple[DType, ...] = WEIGHTS
    for num_tokens, in_features, out_features in _SIZES:
        for dtype in dtypes:
            for has_bias in (False, True):
                call = Call(
                    "linear",
                    (
                        spec(("tokens", in_features), "float32"),
                        spec((out_features, in_features), dtype, "panels"),
                        spec((out_features,), "float32") if has_bias else None,
                    ),
                    (spec(("tokens", out_features), "float32"),),
                )
                x = normal(rng, (num_tokens, in_features), "float32")
                weight = normal(rng, (out_features, in_features), dtype, in_features**-0.5)
                bias = normal(rng, (out_features,), "float32") if has_bias else None
                yield Sample(call, (x, weight, bias), {"tokens": num_tokens})


def _flops(call: Call, sizes: Mapping[str, int]) -> int:
    (tokens, out_features), in_features = call.outputs[0].axes, _in(call)
    return 2 * resolve(tokens, sizes) * resolve(out_features, sizes) * resolve(in_features, sizes)


def _in(call: Call) -> Axis:
    assert call.inputs[0] is not None
    return call.inputs[0].axes[1]


def _features(call: Call, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return resolve(_in(call), sizes), resolve(call.outputs[0].axes[1], sizes)


register(
    Operator(
        name="linear",
        summary="y = x · weightᵀ + bias, each output one chain of multiply-adds over its inputs. Beside weights in"
        " bfloat16 or int8 x is rounded to bfloat16; in int8 a group of 64 is a chain, scaled once, and added in order",
        inputs=(
            Argument("x", ("tokens", "in")),
            Argument("weight", ("out", "in"), WEIGHTS, layouts=("rows", "panels")),
            Argument("bias", ("out",), ("float32",), is_optional=True),
        ),
        outputs=(Argument("y", ("tokens", "out")),),
        reference=_linear,
        samples=_samples,
        tolerance=Tolerance(4e-6, 4e-6, "up to 576 float32 multiply-adds in one chain, terms of order 1/√in"),
        flops=_flops,
    )
)

# `largest` is no part of the contract: the largest y of each panel, for a plan that has a use for it. Left out, it is
# not looked for.
LARGEST = "largest"
implement_kernel("linear", ("x", "weight", "bias", "y", LARGEST), integers=_features, refuse=refuse_rows)
