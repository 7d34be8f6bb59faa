"""PyTorch's own implementations, behind the fused ones of every operator: what those refuse still runs, slower.

The first variant that takes a call is chosen, so these are registered after all others; `trivet operators explain`
names the variant of every node.
"""

from __future__ import annotations

from trivet.operators.contract import IMPLEMENTATIONS, OPERATORS
from trivet.operators.npu import attention, experts, kv_store, linear, norm, pointwise, rope  # noqa: F401  registered before
from trivet.operators.npu.call import implement_on_npu

for _name in OPERATORS:
    for _plain in IMPLEMENTATIONS[_name, "torch"]:
        implement_on_npu(_name, _plain.variant, _plain.lower, _plain.refuse)
