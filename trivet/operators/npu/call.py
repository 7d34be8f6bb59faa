"""How an accepted call joins the registry as the device's implementation."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trivet.operators.contract import Call, Implementation, implement
from trivet.operators.npu.refuse import refuse_cache
from trivet.operators.torch.call import Lower, refuse_layouts


def implement_on_npu(
    operator: str,
    variant: str,
    lower: Lower,
    refuse: Callable[[Call], str | None] = lambda call: None,
    prepare: Callable[[Call, str, torch.Tensor], torch.Tensor] | None = None,
) -> Implementation:
    """Register `lower`; `refuse` sees only calls whose tensors lie as PyTorch has them."""

    def refuse_call(call: Call) -> str | None:
        return refuse_layouts(call) or refuse(call) or refuse_cache(call)

    return implement(Implementation(operator, "npu", variant, refuse_call, lower, prepare))
