"""The operator leg. Importing it registers every contract and its implementations."""

from trivet.operators import attention, linear, norm, pointwise, rope
from trivet.operators.contract import OPERATORS

__all__ = ["OPERATORS", "attention", "linear", "norm", "pointwise", "rope"]
