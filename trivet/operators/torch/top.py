"""The highest of a row in PyTorch. By a stable sort: `torch.topk` leaves the order of equals to the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from trivet.operators.contract import Call
from trivet.operators.top import EPSILON
from trivet.operators.torch.call import Run, given, implement_in_torch
from trivet.operators.torch.lengths import StepLengths


def highest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` highest of each row, highest first, the lower of equals; int64."""
    keys = torch.where(torch.isnan(values), torch.inf, values)
    return keys.sort(dim=1, descending=True, stable=True).indices[:, :count]


def _top_k(call: Call, sizes: Mapping[str, int]) -> Run:
    count = call.integer("count")

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        (logits,) = given(inputs, 0)
        tokens = highest(logits, count)
        return [logits.gather(1, tokens).float(), tokens.int()]

    return run


def _router_topk(call: Call, sizes: Mapping[str, int]) -> Run:
    chosen, is_renormalised = call.integer("chosen"), bool(call.attributes["is_renormalised"])
    is_softmax = call.attributes["score"] == "softmax"

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        (logits,) = given(inputs, 0)
        experts = highest(logits, chosen)
        if is_softmax and is_renormalised:
            weights = torch.softmax(logits.gather(1, experts), dim=1)
        elif is_softmax:
            weights = torch.softmax(logits, dim=1).gather(1, experts)
        else:
            weights = torch.sigmoid(logits.gather(1, experts))
            if is_renormalised:
                weights = weights / (weights.sum(dim=1, keepdim=True) + EPSILON)
        return [weights, experts.int()]

    return run


implement_in_torch("top_k", _top_k)
implement_in_torch("router_topk", _router_topk)
