"""Every operator in plain PyTorch, on whatever device its tensors are: the second opinion, and the way to bring up one.

Imported only when a torch device is asked for; the core never needs PyTorch. Importing it registers the
implementations. Weights lie in rows, caches in blocks.
"""

from trivet.operators.torch import attention, linear, moe, norm, pointwise, rope, top

__all__ = ["attention", "linear", "moe", "norm", "pointwise", "rope", "top"]
