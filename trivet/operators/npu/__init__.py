"""The operators on an Ascend NPU, over torch_npu. Importing it registers them and needs torch_npu 2.10 or newer.

Nothing imports it but what was asked for the device "npu", so its modules import both at their top.

Weights lie in rows and caches in blocks, as for PyTorch (trivet/operators/torch). Limits of the device's operators are
those of their published pages (op-plugin, docs/zh/custom_APIs/torch_npu, August 2026) for Atlas A2 and A3; what they do
not take is refused here first, in a sentence.
"""

from trivet.operators.npu import attention, experts, kv_store, linear, norm, plain, pointwise, rope

__all__ = ["attention", "experts", "kv_store", "linear", "norm", "plain", "pointwise", "rope"]
