"""Reading the next weights into L2 ahead of their use. A hint: it changes no value, and CANN has no way to pin them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch_npu


def prefetch(weights: Iterable[torch.Tensor], after: torch.Tensor, max_bytes: int) -> int:
    """Ask for `weights`, in the order they will be read, until `max_bytes` are on their way; returns how many are.

    Enqueued on the current stream, which should not be the one that computes. `after` is the value whose producer the
    reads follow; only a compiled graph heeds it. The last weight may be asked for in part.
    """
    asked = 0
    for weight in weights:
        num_bytes = min(weight.nbytes, max_bytes - asked)
        if num_bytes <= 0:
            break
        torch_npu.npu_prefetch(input=weight, dependency=after, max_size=num_bytes, offset=0)
        asked += num_bytes
    return asked
