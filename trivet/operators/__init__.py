"""The operator leg. Importing it registers every contract and its implementations."""

from trivet.operators import attention, kv_fetch, linear, moe, norm, pointwise, rope, top
from trivet.operators.contract import OPERATORS

__all__ = ["OPERATORS", "attention", "kv_fetch", "linear", "moe", "norm", "pointwise", "rope", "top"]
