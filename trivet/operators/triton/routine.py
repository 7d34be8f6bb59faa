"""Operators that take several launches, or operands seen in another shape than the contract's.

Each launch is proved by its own definition (tests/ascend/test_triton_right.py), the whole by its contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trivet.base.dtypes import DType
from trivet.operators.contract import Call
from trivet.operators.triton import moe, router, sample
from trivet.operators.triton.launch import Launch, power_of_two
from trivet.operators.triton.operands import activation, width
from trivet.operators.triton.tiles import Soc, tile

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Routine:
    """`launches` in order over the contract's arguments by name. `pairs` are those seen with their first two axes as
    one; `scratch` gives, for so many rows of the first input, what the launches share between them."""

    operator: str
    refuse: Callable[[Call], str | None]
    launches: Callable[[Call, Soc], tuple[Launch, ...]]
    pairs: tuple[str, ...] = ()
    scratch: Callable[[Call, int], Mapping[str, tuple[Shape, DType]]] = field(default=lambda call, num_rows: {})


def _refuse_router(call: Call) -> str | None:
    if call.attributes["score"] != "softmax":
        return f"score is {call.attributes['score']}, the kernel makes softmax weights"
    elements = tile("router_topk", "float32").sizes["elements"]
    if power_of_two(width(call, 0)) > elements:
        return f"{width(call, 0)} experts do not fit the tile of {elements} elements"
    return None


def _router_topk(call: Call, soc: Soc) -> tuple[Launch, ...]:
    is_renormalised = bool(call.integer("is_renormalised"))
    return (router.router_topk(width(call, 0), call.integer("chosen"), is_renormalised, soc),)


def _refuse_permute(call: Call) -> str | None:
    num_experts, elements = call.integer("num_experts"), tile("order", "int32").sizes["elements"]
    if power_of_two(num_experts) > elements:
        return f"{num_experts} experts do not fit the tile of {elements} elements"
    return None


def _permute(call: Call, soc: Soc) -> tuple[Launch, ...]:
    order = moe.order(call.integer("num_experts"), soc)
    return (*order, moe.permute(width(call, 0), width(call, 1), activation(call, 0), soc))


def _permute_scratch(call: Call, num_rows: int) -> Mapping[str, tuple[Shape, DType]]:
    num_experts = call.integer("num_experts")
    blocks = (moe.block_count(num_rows * width(call, 1), num_experts), num_experts)
    return {"counts": (blocks, "int32"), "offsets": (blocks, "int32")}


def _unpermute(call: Call, soc: Soc) -> tuple[Launch, ...]:
    return (moe.unpermute(width(call, 0), width(call, 2), activation(call, 0), soc),)


def _refuse_top(call: Call) -> str | None:
    vocab, count, sizes = width(call, 0), call.integer("count"), tile("top", activation(call, 0)).sizes
    if count > sizes["count"]:
        return f"count is {count}, the tile holds {sizes['count']}"
    left = sample.candidates(vocab, count)
    if left > sizes["elements"]:
        return f"{count} of {vocab} logits leave {left}, the second pass takes {sizes['elements']}"
    return None


def _top_k(call: Call, soc: Soc) -> tuple[Launch, ...]:
    return sample.top(width(call, 0), call.integer("count"), activation(call, 0), soc)


def _top_scratch(call: Call, num_rows: int) -> Mapping[str, tuple[Shape, DType]]:
    shape = (num_rows, sample.candidates(width(call, 0), call.integer("count")))
    return {"candidate_values": (shape, "float32"), "candidate_tokens": (shape, "int32")}


ROUTINES = (
    Routine("router_topk", _refuse_router, _router_topk),
    Routine("moe_permute", _refuse_permute, _permute, ("experts", "places", "y"), _permute_scratch),
    Routine("moe_unpermute", lambda call: None, _unpermute, ("x", "places")),
    Routine("top_k", _refuse_top, _top_k, scratch=_top_scratch),
)
