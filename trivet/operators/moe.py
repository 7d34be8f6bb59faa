"""Tokens to their experts and back: rows ordered by expert, a product with each expert's weights, weighted sums.

A pair is one choice of one token. A value [tokens, chosen, width] holds a row for each pair: as the tokens chose, or,
between `moe_permute` and `moe_unpermute`, ordered by expert, then by token, then by choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from trivet.base.dtypes import Array
from trivet.base.errors import GraphError
from trivet.operators.contract import (
    FLOATS,
    Argument,
    Attribute,
    Axis,
    Call,
    Operator,
    Sample,
    TensorSpec,
    Tolerance,
    register,
    resolve,
)
from trivet.operators.cpu import implement_kernel
from trivet.operators.linear import as_multiplied
from trivet.operators.panels import refuse_rows
from trivet.operators.samples import normal, spec

# (tokens, experts, chosen, width in, width out): one of all, odd, one past a tile of rows and a panel, more experts
# than pairs, many pairs of few experts.
_SIZES = ((1, 1, 1, 1, 1), (3, 4, 2, 33, 31), (13, 4, 1, 64, 33), (2, 128, 8, 48, 32), (40, 3, 3, 65, 70))


def places_of(experts: Array) -> Array:
    """[tokens, chosen] → where each pair goes when rows are ordered by expert, stably."""
    order = np.argsort(experts.reshape(-1), kind="stable")
    places = np.empty(experts.size, np.int32)
    places[order] = np.arange(experts.size, dtype=np.int32)
    return places.reshape(experts.shape)


def ends_of(experts: Array, num_experts: int) -> Array:
    """Rows up to the end of each expert: [experts]."""
    return np.cumsum(np.bincount(experts.reshape(-1), minlength=num_experts)).astype(np.int32)


def _permute(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    x, experts = inputs
    assert x is not None and experts is not None
    order = np.argsort(experts.reshape(-1), kind="stable")
    y = x[order // experts.shape[1]].reshape(*experts.shape, -1)
    return [y, places_of(experts), ends_of(experts, call.integer("num_experts"))]


def _grouped_linear(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    x, weight, ends = inputs
    assert x is not None and weight is not None and ends is not None
    rows = as_multiplied(call, x.reshape(-1, x.shape[2]))
    spans = pairwise([0, *ends])
    y = np.concatenate([rows[start:end] @ each.T for (start, end), each in zip(spans, weight, strict=True)])
    return [y.reshape(*x.shape[:2], -1)]


def _unpermute(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    x, places, weights = inputs
    assert x is not None and places is not None and weights is not None
    rows = x.reshape(-1, x.shape[2])
    return [(rows[places] * weights[:, :, None]).sum(axis=1)]


def _choices(rng: np.random.Generator, num_tokens: int, num_experts: int, chosen: int) -> Iterator[Array]:
    """Ordinary choices; then all tokens at the same experts, the last ones: most experts have no row."""
    each = [rng.permutation(num_experts)[:chosen] for _ in range(num_tokens)]
    yield np.array(each, np.int32)
    same = np.arange(num_experts - chosen, num_experts, dtype=np.int32)
    yield np.broadcast_to(same, (num_tokens, chosen)).copy()


def _permute_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_experts, chosen, width, _ in _SIZES:
        for experts in _choices(rng, num_tokens, num_experts, chosen):
            pairs = spec(("tokens", chosen), "int32")
            outputs = (spec(("tokens", chosen, width), "float32"), pairs, spec((num_experts,), "int32"))
            inputs = (spec(("tokens", width), "float32"), pairs)
            call = Call("moe_permute", inputs, outputs, {"num_experts": num_experts})
            yield Sample(call, (normal(rng, (num_tokens, width), "float32"), experts), {"tokens": num_tokens})


def _grouped_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_experts, chosen, width, out in _SIZES:
        for dtype in FLOATS:
            for experts in _choices(rng, num_tokens, num_experts, chosen):
                x = spec(("tokens", chosen, width), "float32")
                weight = spec((num_experts, out, width), dtype, "panels")
                inputs = (x, weight, spec((num_experts,), "int32"))
                call = Call("grouped_linear", inputs, (spec(("tokens", chosen, out), "float32"),))
                values = normal(rng, (num_tokens, chosen, width), "float32")
                weights = normal(rng, (num_experts, out, width), dtype, width**-0.5)
                yield Sample(call, (values, weights, ends_of(experts, num_experts)), {"tokens": num_tokens})


def _unpermute_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_experts, chosen, width, _ in _SIZES:
        for experts in _choices(rng, num_tokens, num_experts, chosen):
            x = spec(("tokens", chosen, width), "float32")
            inputs = (x, spec(("tokens", chosen), "int32"), spec(("tokens", chosen), "float32"))
            call = Call("moe_unpermute", inputs, (spec(("tokens", width), "float32"),))
            values = normal(rng, (num_tokens, chosen, width), "float32")
            weights = rng.random((num_tokens, chosen), np.float32)
            yield Sample(call, (values, places_of(experts), weights), {"tokens": num_tokens})


def _infer_experts(sizes: Mapping[str, Axis], attributes: Mapping[str, Attribute]) -> Mapping[str, Axis]:
    num_experts, chosen = attributes["num_experts"], sizes["chosen"]
    assert isinstance(num_experts, int) and isinstance(chosen, int)
    if num_experts < chosen:
        raise GraphError(f"moe_permute: {chosen} experts are chosen of each token, there are {num_experts}")
    return {"experts": num_experts}


def _axes(given: TensorSpec | None, sizes: Mapping[str, int]) -> list[int]:
    assert given is not None
    return [resolve(axis, sizes) for axis in given.axes]


def _grouped_flops(call: Call, sizes: Mapping[str, int]) -> int:
    (tokens, chosen, width), (_, out, _) = _axes(call.inputs[0], sizes), _axes(call.inputs[1], sizes)
    return 2 * tokens * chosen * width * out


def _grouped_bytes(call: Call, sizes: Mapping[str, int]) -> int:
    """The weights that are used are read once: of a token's choices at least, when all tokens chose alike."""
    x, weight, ends = call.inputs
    assert x is not None and weight is not None and ends is not None
    num_experts, chosen = _axes(weight, sizes)[0], _axes(x, sizes)[1]
    used = weight.bytes(sizes) // num_experts * min(num_experts, chosen)
    return x.bytes(sizes) + used + ends.bytes(sizes) + call.outputs[0].bytes(sizes)


def _unpermute_flops(call: Call, sizes: Mapping[str, int]) -> int:
    tokens, chosen, width = _axes(call.inputs[0], sizes)
    return 2 * tokens * chosen * width


def _permute_integers(call: Call, sizes: Mapping[str, int]) -> tuple[int, ...]:
    _, chosen, width = _axes(call.outputs[0], sizes)
    return width, chosen, call.integer("num_experts")


def _grouped_integers(call: Call, sizes: Mapping[str, int]) -> tuple[int, ...]:
    chosen, (num_experts, out, width) = _axes(call.inputs[0], sizes)[1], _axes(call.inputs[1], sizes)
    return chosen, width, out, num_experts


def _unpermute_integers(call: Call, sizes: Mapping[str, int]) -> tuple[int, ...]:
    _, chosen, width = _axes(call.inputs[0], sizes)
    return width, chosen


register(
    Operator(
        name="moe_permute",
        summary="a row for each choice of each token, ordered by expert, then by token, then by choice; where each"
        " choice went, and the rows up to the end of each expert",
        inputs=(Argument("x", ("tokens", "width")), Argument("experts", ("tokens", "chosen"), ("int32",))),
        outputs=(
            Argument("y", ("tokens", "chosen", "width")),
            Argument("places", ("tokens", "chosen"), ("int32",)),
            Argument("ends", ("experts",), ("int32",)),
        ),
        attributes=("num_experts",),
        reference=_permute,
        samples=_permute_samples,
        tolerance=Tolerance(0.0, 0.0, "rows are copied"),
        flops=lambda call, sizes: 0,
        infer=_infer_experts,
        promise="places follow from the choices alone, on every device; a row is its token's, bit for bit",
    )
)
register(
    Operator(
        name="grouped_linear",
        summary="y = x · weightᵀ with the weight of each row's expert, rows ordered by expert; each output the one that"
        " linear makes of its row, whoever shares its expert",
        inputs=(
            Argument("x", ("tokens", "chosen", "in")),
            Argument("weight", ("experts", "out", "in"), layouts=("rows", "panels")),
            Argument("ends", ("experts",), ("int32",)),
        ),
        outputs=(Argument("y", ("tokens", "chosen", "out")),),
        reference=_grouped_linear,
        samples=_grouped_samples,
        tolerance=Tolerance(2e-6, 2e-6, "up to 65 float32 multiply-adds in one chain, terms of order 1/√in"),
        flops=_grouped_flops,
        fewest_bytes=_grouped_bytes,
    )
)
register(
    Operator(
        name="moe_unpermute",
        summary="the weighted sum of each token's rows, in the order of its choices",
        inputs=(
            Argument("x", ("tokens", "chosen", "width")),
            Argument("places", ("tokens", "chosen"), ("int32",)),
            Argument("weights", ("tokens", "chosen"), ("float32",)),
        ),
        outputs=(Argument("y", ("tokens", "width")),),
        reference=_unpermute,
        samples=_unpermute_samples,
        tolerance=Tolerance(2e-6, 1e-6, "up to 8 float32 multiply-adds of terms of order one"),
        flops=_unpermute_flops,
    )
)

implement_kernel("moe_permute", ("x", "experts", "y", "places", "ends"), integers=_permute_integers)
implement_kernel("grouped_linear", ("x", "weight", "ends", "y"), integers=_grouped_integers, refuse=refuse_rows)
implement_kernel("moe_unpermute", ("x", "places", "weights", "y"), integers=_unpermute_integers)
