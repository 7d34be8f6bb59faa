"""The highest of a row and where they are: what the sampler chooses among, and which experts a token goes to.

Of equal values the lower index comes first, on every device; a NaN ranks with +∞, so that it is seen and not skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from trivet.base.dtypes import Array
from trivet.base.errors import GraphError
from trivet.operators.contract import (
    Argument,
    Attribute,
    Axis,
    Call,
    Operator,
    Sample,
    Tolerance,
    register,
    resolve,
)
from trivet.operators.cpu import implement_kernel
from trivet.operators.samples import normal, spec

SCORES = ("softmax", "sigmoid")
EPSILON = 1e-20  # beside the sum of sigmoid scores, as the published models that use them have it


def highest(values: Array, count: int) -> Array:
    """Indices of the `count` highest of each row, highest first: the order that every implementation keeps to."""
    keys = np.where(np.isnan(values), np.inf, values)
    found: Array = np.argsort(-keys, axis=1, kind="stable")[:, :count].astype(np.int32)
    return found


def _top_k(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    (logits,) = inputs
    assert logits is not None
    tokens = highest(logits, call.integer("count"))
    return [np.take_along_axis(logits, tokens, 1), tokens]


def _router_topk(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    (logits,) = inputs
    assert logits is not None
    experts = highest(logits, call.integer("chosen"))
    is_softmax, is_renormalised = call.attributes["score"] == "softmax", bool(call.attributes["is_renormalised"])
    with np.errstate(over="ignore", invalid="ignore"):
        scores = np.exp(logits - logits.max(axis=1, keepdims=True)) if is_softmax else 1 / (1 + np.exp(-logits))
        weights = np.take_along_axis(scores, experts, 1)
        if is_renormalised:
            weights = weights / (weights.sum(axis=1, keepdims=True) + (0.0 if is_softmax else EPSILON))
        elif is_softmax:
            weights = weights / scores.sum(axis=1, keepdims=True)
    return [weights, experts]


def _adversarial(rng: np.random.Generator, rows: int, width: int) -> Array:
    """Rows with many ties; where there are enough of them, also a row of zeros, one of which all but the last is −∞,
    one with a single huge value, and one of denormals."""
    values: Array = rng.standard_normal((rows, width)).astype(np.float32).round(1)
    if rows > 4:
        values[1], values[2, : width - 1], values[3], values[4] = 0.0, -np.inf, 0.0, 1e-41
        values[3, width // 2] = 3e38
    return values


def _top_k_samples(rng: np.random.Generator) -> Iterator[Sample]:
    # One, odd, one past a tile of 4096, a vocabulary that is no multiple of anything.
    for num_rows, vocab, count in ((1, 1, 1), (3, 33, 7), (5, 40, 40), (6, 4097, 64), (2, 10_001, 50)):
        outputs = (spec(("rows", count), "float32"), spec(("rows", count), "int32"))
        call = Call("top_k", (spec(("rows", vocab), "float32"),), outputs, {"count": count})
        yield Sample(call, (_adversarial(rng, num_rows, vocab),), {"rows": num_rows})
        yield Sample(call, (normal(rng, (num_rows, vocab), "float32", 5.0),), {"rows": num_rows})


def _router_samples(rng: np.random.Generator) -> Iterator[Sample]:
    # (experts, chosen) of Mixtral, DeepSeek V2 Lite, Qwen3, DeepSeek V3; one, and all of an odd number.
    for experts, chosen in ((8, 2), (60, 6), (128, 8), (256, 8), (1, 1), (3, 3)):
        for score in SCORES:
            for is_renormalised in (0, 1):
                num_tokens = 17 if experts == 8 else 5
                outputs = (spec(("tokens", chosen), "float32"), spec(("tokens", chosen), "int32"))
                attributes: dict[str, Attribute] = {
                    "chosen": chosen, "score": score, "is_renormalised": is_renormalised
                }  # fmt: skip
                call = Call("router_topk", (spec(("tokens", experts), "float32"),), outputs, attributes)
                yield Sample(call, (_adversarial(rng, num_tokens, experts),), {"tokens": num_tokens})


def _infer_top(sizes: Mapping[str, Axis], attributes: Mapping[str, Attribute]) -> Mapping[str, Axis]:
    return {"count": _count("top_k", attributes["count"], sizes["vocab"], "logits")}


def _infer_chosen(sizes: Mapping[str, Axis], attributes: Mapping[str, Attribute]) -> Mapping[str, Axis]:
    if attributes["score"] not in SCORES:
        raise GraphError(f"router_topk: score is {attributes['score']!r}, wanted one of {', '.join(SCORES)}")
    return {"chosen": _count("router_topk", attributes["chosen"], sizes["experts"], "experts")}


def _count(operator: str, count: Attribute, size: Axis, what: str) -> int:
    assert isinstance(count, int) and isinstance(size, int)
    if not 0 < count <= size:
        raise GraphError(f"{operator}: {count} of {size} {what} cannot be chosen, wanted 1 to {size}")
    return count


def _elements(call: Call, sizes: Mapping[str, int]) -> int:
    assert call.inputs[0] is not None
    rows, width = call.inputs[0].axes
    return resolve(rows, sizes) * resolve(width, sizes)


def _router_integers(call: Call, sizes: Mapping[str, int]) -> tuple[int, ...]:
    assert call.inputs[0] is not None
    num_experts = resolve(call.inputs[0].axes[1], sizes)
    is_sigmoid = int(call.attributes["score"] == "sigmoid")
    return num_experts, call.integer("chosen"), is_sigmoid, call.integer("is_renormalised")


def _top_integers(call: Call, sizes: Mapping[str, int]) -> tuple[int, ...]:
    assert call.inputs[0] is not None
    return resolve(call.inputs[0].axes[1], sizes), call.integer("count")


register(
    Operator(
        name="top_k",
        summary="the `count` highest logits of a row and their tokens, highest first, the lower token of equals; a NaN"
        " ranks with +∞",
        inputs=(Argument("logits", ("rows", "vocab")),),
        outputs=(
            Argument("values", ("rows", "count"), ("float32",)),
            Argument("tokens", ("rows", "count"), ("int32",)),
        ),
        attributes=("count",),
        reference=_top_k,
        samples=_top_k_samples,
        tolerance=Tolerance(0.0, 0.0, "values are copied"),
        flops=_elements,
        infer=_infer_top,
    )
)
register(
    Operator(
        name="router_topk",
        summary="the `chosen` experts of highest logit, the lower of equals, and their weights: `score` (softmax over"
        " all, or sigmoid), made to add up to 1 if `is_renormalised`; a NaN ranks with +∞ and makes its weights NaN",
        inputs=(Argument("logits", ("tokens", "experts"), ("float32",)),),
        outputs=(
            Argument("weights", ("tokens", "chosen"), ("float32",)),
            Argument("experts", ("tokens", "chosen"), ("int32",)),
        ),
        attributes=("chosen", "score", "is_renormalised"),
        reference=_router_topk,
        samples=_router_samples,
        tolerance=Tolerance(1e-37, 2e-6, "exp to 2e-7, a float32 sum of up to 256 positive terms in 16 lanes"),
        flops=lambda call, sizes: 5 * _elements(call, sizes),
        infer=_infer_chosen,
    )
)

implement_kernel("top_k", ("logits", "values", "tokens"), integers=_top_integers)
implement_kernel("router_topk", ("logits", "weights", "experts"), integers=_router_integers)
