"""Every kernel that implements a contract: the list that is registered on a device, compiled and proved."""

from __future__ import annotations

from trivet.operators.triton import attention, norm, pointwise, rope_kv
from trivet.operators.triton.launch import Kernel

KERNELS: tuple[Kernel, ...] = (*norm.KERNELS, *pointwise.KERNELS, *rope_kv.KERNELS, *attention.KERNELS)
