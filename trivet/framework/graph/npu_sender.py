"""A step's integers on their way to an NPU: one pinned buffer, one on the device, one copy on a stream of its own.

One buffer of each is enough, and no wait guards them: a step is sent only after the host has read the logits of the
one before, for which that step's copy and every reader of it had to be done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from trivet.base.dtypes import Array

_ALIGNMENT = 8  # int32: the cores of an NPU move blocks of 32 bytes


class Sender:
    """Room for `num_integers` int32, parts included that begin at multiples of 32 bytes."""

    def __init__(self, num_integers: int, device: torch.device) -> None:
        self._on_host = torch.zeros(num_integers, dtype=torch.int32).pin_memory()
        self._on_device = torch.zeros(num_integers, dtype=torch.int32, device=device)
        self._stream = torch.npu.Stream()
        self._sent = torch.npu.Event()

    def send(self, arrays: Sequence[Array]) -> torch.npu.Event:
        """Enqueue the copy of `arrays`; what reads them on the device waits for the event."""
        parts = list(_parts([array.shape for array in arrays]))
        for array, (start, end) in zip(arrays, parts, strict=True):
            self._on_host.numpy()[start:end] = array.reshape(-1)
        end = parts[-1][1]
        with torch.npu.stream(self._stream):
            self._on_device[:end].copy_(self._on_host[:end], non_blocking=True)
            self._sent.record(self._stream)
        return self._sent

    def there(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
        """Arrays of these shapes as they lie on the device: the same memory in every step."""
        parts = zip(shapes, _parts(list(shapes.values())), strict=True)
        return {name: self._on_device[start:end].view(shapes[name]) for name, (start, end) in parts}


def room_for(shapes: Sequence[tuple[int, ...]]) -> int:
    """How many integers arrays of these shapes need."""
    return max(end for _, end in _parts(shapes))


def _parts(shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """First and end of each array in the buffer."""
    start = 0
    for shape in shapes:
        end = start + int(np.prod(shape))
        yield start, end
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
