"""What a router is tried with: logits with many ties, and the experts and shares that its definition gives."""

from __future__ import annotations

import numpy as np

from trivet.base.dtypes import Array


def router_case(num_experts: int, chosen: int, is_renormalised: bool) -> tuple[dict[str, Array], Array, Array]:
    """Operands of `router_topk`; the experts wanted of each token, highest first, and the share of every expert."""
    logits = np.random.default_rng(1).standard_normal((37, num_experts)).astype(np.float32).round(1)  # many ties
    logits[3] = 0.0
    logits[4, : num_experts - 1] = -np.inf
    wanted = np.argsort(-logits, axis=1, kind="stable")[:, :chosen]
    shares = np.exp(logits.astype(np.float64))
    shares /= (np.take_along_axis(shares, wanted, 1) if is_renormalised else shares).sum(axis=1, keepdims=True)
    operands = {
        "logits": logits,
        "weights": np.full((37, chosen), np.nan, np.float32),
        "experts": np.full((37, chosen), -1, np.int32),
    }
    return operands, wanted, shares
