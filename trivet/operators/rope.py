"""Rotary position embedding: the angles of a step, once for all layers, and their application to queries and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from trivet.base.dtypes import Array
from trivet.operators.contract import Argument, Attribute, Axis, Call, Operator, Sample, Tolerance, register, resolve
from trivet.operators.cpu import implement_kernel
from trivet.operators.samples import HEAD_DIMS, ROWS, normal, spec


def rotate(x: Array, angles: Array, head_dim: int) -> Array:
    """x [tokens, heads · head_dim] rotated by angles [tokens, cosines | sines] in its first `rotary` dims.

    Dimension i is paired with i + rotary / 2, as the published Llama and Qwen checkpoints expect.
    """
    half = angles.shape[1] // 2
    heads = x.reshape(x.shape[0], -1, head_dim)
    cos, sin = angles[:, None, :half], angles[:, None, half:]
    first, second = heads[..., :half], heads[..., half : 2 * half]
    rotated = [first * cos - second * sin, second * cos + first * sin, heads[..., 2 * half :]]
    return np.concatenate(rotated, axis=-1).reshape(x.shape)


def _rope(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    x, angles = inputs
    assert x is not None and angles is not None
    return [rotate(x, angles, call.integer("head_dim"))]


def _rope_angles(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    positions, frequencies = inputs
    assert positions is not None and frequencies is not None
    # The product is rounded to float32 on purpose: that is what the models were trained with.
    product = positions[:, None].astype(np.float32) * frequencies[None].astype(np.float32)
    angle = product.astype(np.float64)
    return [np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * call.number("scale")]


def _angle_width(sizes: Mapping[str, Axis], attributes: Mapping[str, Attribute]) -> Mapping[str, Axis]:
    half = sizes["half"]
    assert isinstance(half, int)
    return {"rotary": 2 * half}


def _rope_angles_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, half in zip(ROWS, (1, 8, 17, 64), strict=True):
        call = Call(
            "rope_angles",
            (spec(("tokens",), "int32"), spec((half,), "float32")),
            (spec(("tokens", 2 * half), "float32"),),
            {"scale": 1.0},
        )
        positions = rng.integers(0, 131072, num_tokens).astype(np.int32)
        frequencies = (10000.0 ** -(np.arange(half) / half)).astype(np.float32)
        yield Sample(call, (positions, frequencies), {"tokens": num_tokens})


def _rope_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, head_dim in zip(ROWS, HEAD_DIMS, strict=True):
        for heads, rotary in ((1, head_dim), (3, max(2, head_dim // 4 * 2))):
            x, angles = spec(("tokens", heads * head_dim), "float32"), spec(("tokens", rotary), "float32")
            call = Call("rope", (x, angles), (x,), {"head_dim": head_dim})
            values = normal(rng, (num_tokens, heads * head_dim), "float32")
            yield Sample(call, (values, normal(rng, (num_tokens, rotary), "float32")), {"tokens": num_tokens})


def _shape(call: Call, sizes: Mapping[str, int]) -> tuple[int, ...]:
    x, angles = call.inputs
    assert x is not None and angles is not None
    head_dim = call.integer("head_dim")
    return resolve(x.axes[1], sizes) // head_dim, head_dim, resolve(angles.axes[1], sizes)


def _refuse(call: Call) -> str | None:
    x, angles = call.inputs
    assert x is not None and angles is not None
    width, rotary, head_dim = x.axes[1], angles.axes[1], call.integer("head_dim")
    if not isinstance(width, int) or width % head_dim:
        return f"width {width} is not a multiple of head_dim {head_dim}"
    return None if isinstance(rotary, int) and rotary <= head_dim else f"{rotary} angles exceed head_dim {head_dim}"


register(
    Operator(
        name="rope_angles",
        summary="cosines, then sines, of positions · frequencies, times scale",
        inputs=(Argument("positions", ("tokens",), ("int32",)), Argument("frequencies", ("half",), ("float32",))),
        outputs=(Argument("angles", ("tokens", "rotary"), ("float32",)),),
        attributes=("scale",),
        reference=_rope_angles,
        samples=_rope_angles_samples,
        tolerance=Tolerance(1.2e-7, 1.2e-7, "double cosine and sine of a float32 product, rounded once"),
        flops=lambda call, sizes: 2 * sizes["tokens"],
        infer=_angle_width,
    )
)
register(
    Operator(
        name="rope",
        summary="each head's first dims rotated by the angles of its token",
        inputs=(Argument("x", ("tokens", "width")), Argument("angles", ("tokens", "rotary"), ("float32",))),
        outputs=(Argument("y", ("tokens", "width")),),
        attributes=("head_dim",),
        reference=_rope,
        samples=_rope_samples,
        tolerance=Tolerance(1e-6, 1e-6, "two float32 products and a sum that may cancel"),
        flops=lambda call, sizes: 3 * call.outputs[0].bytes(sizes) // 4,
    )
)

implement_kernel(
    "rope_angles",
    ("positions", "frequencies", "angles"),
    integers=lambda call, sizes: (resolve(call.outputs[0].axes[1], sizes) // 2,),
    numbers=lambda call: (call.number("scale"),),
)
implement_kernel("rope", ("x", "angles", "y"), integers=_shape, refuse=_refuse)
