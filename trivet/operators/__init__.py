"""The operator leg. Importing it registers every contract and its implementations."""

from trivet.operators import attention, linear, norm, pointwise, rope

__all__ = ["attention", "linear", "norm", "pointwise", "rope"]
