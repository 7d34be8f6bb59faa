"""Reading the next weights into L2 ahead of their use. A hint: it changes no value, and CANN has no way to pin them."""

from __future__ import annotations

import torch
import torch_npu

_MIB = 1 << 20
# Bytes of L2. Source: l2_size in CANN's platform files (runtime, src/platform/platform_config), one per chip; of those
# that npu_prefetch is published for.
L2_BYTES: dict[str, int] = {
    "Ascend910B1": 192 * _MIB,
    "Ascend910B2": 192 * _MIB,
    "Ascend910B2C": 192 * _MIB,
    "Ascend910B3": 192 * _MIB,
    "Ascend910B4": 96 * _MIB,
    "Ascend910B4-1": 168 * _MIB,
    "Ascend910_9391": 192 * _MIB,
    "Ascend910_9392": 192 * _MIB,
    "Ascend910_9381": 192 * _MIB,
    "Ascend910_9382": 192 * _MIB,
    "Ascend910_9372": 192 * _MIB,
    "Ascend910_9362": 168 * _MIB,
    "Ascend910_9363": 168 * _MIB,
}


def prefetch_bytes(chip: str) -> int:
    """How much may be asked for at once: half of L2, the rest is left to what is read meanwhile. 0: chip not known."""
    return L2_BYTES.get(chip, 0) // 2


def prefetch(weight: torch.Tensor, after: torch.Tensor, max_bytes: int) -> None:
    """Ask for the first `max_bytes` of `weight`, at most for all of it.

    Enqueued on the current stream, which should not be the one that computes. `after` is the value whose producer the
    reads follow; only a compiled graph heeds it.
    """
    torch_npu.npu_prefetch(input=weight, dependency=after, max_size=min(weight.nbytes, max_bytes), offset=0)
