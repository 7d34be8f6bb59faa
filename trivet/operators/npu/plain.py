"""PyTorch's own implementations, behind the fused ones of every operator: what those refuse still runs, slower.

The first variant that takes a call is chosen, so these are registered after all others; `trivet operators explain`
names the variant of every node.
"""

from __future__ import annotations

from collections.abc import Callable

from trivet.operators.contract import IMPLEMENTATIONS, OPERATORS, Call
from trivet.operators.npu import attention, experts, kv_store, linear, norm, pointwise, rope  # noqa: F401  registered before
from trivet.operators.npu.call import implement_on_npu
from trivet.operators.npu.refuse import formats


def _but_int8_caches(refuse: Callable[[Call], str | None]) -> Callable[[Call], str | None]:
    """A cache in int8 would be widened as a whole in every step, so that it cost time and saved none."""

    def refuse_call(call: Call) -> str | None:
        if formats(call).get("cache") == "int8":
            return "cache is int8, an NPU keeps it in float32 or bfloat16"
        return refuse(call)

    return refuse_call


for _name in OPERATORS:
    for _plain in IMPLEMENTATIONS[_name, "torch"]:
        implement_on_npu(_name, _plain.variant, _plain.lower, _but_int8_caches(_plain.refuse))
