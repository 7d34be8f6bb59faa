"""Memory of a device that PyTorch drives: one tensor of bytes there, filled from pinned tensors on a stream of its own.

What is a tensor in it is a view: nothing is copied once more, and the memory lives as long as any of them.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

from trivet.base.errors import ResourceError
from trivet.base.units import format_bytes
from trivet.driver.devices.memory import HostBuffer


class PinnedTensor:
    """Bytes of the host that a device reads without the host's help, on a page boundary."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        held = _pinned(num_bytes)
        # Allocators of pinned memory begin on pages, and round sizes up: ask for more only from one that does not.
        before = -held.data_ptr() % mmap.PAGESIZE
        if before:
            held = _pinned(num_bytes + mmap.PAGESIZE)
            before = -held.data_ptr() % mmap.PAGESIZE
        self.bytes = held[before : before + num_bytes]
        self.address = self.bytes.data_ptr()


class TorchCopy:
    """A copy, and the event that its stream reaches after it."""

    def __init__(self, event: torch.Event, num_bytes: int, device: torch.device) -> None:
        self._event = event
        self._num_bytes = num_bytes
        self._device = device

    @property
    def is_done(self) -> bool:
        try:
            return bool(self._event.query())
        except RuntimeError:  # over, and not well: `wait` says so
            return True

    def wait(self) -> None:
        try:
            self._event.synchronize()
        except RuntimeError as error:
            raise _failed(self._device, f"a copy of {format_bytes(self._num_bytes)} failed", error) from None


class TorchMemory:
    """`num_bytes` of a torch device with memory of its own. Raises ResourceError when it has not that much to give."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self.num_bytes = num_bytes
        self._device = device
        self._torch = torch.get_device_module(device)
        try:
            self._bytes = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        except RuntimeError as error:
            raise _failed(device, f"{format_bytes(num_bytes)} of memory", error) from None
        self._stream = self._torch.Stream(device)
        # What had this memory before may not be finished with it.
        self._stream.wait_stream(self._torch.current_stream(device))

    def host_buffer(self, num_bytes: int) -> PinnedTensor:
        try:
            return PinnedTensor(num_bytes)
        except RuntimeError as error:
            raise _failed(self._device, f"{format_bytes(num_bytes)} of pinned memory", error) from None

    def copy(self, buffer: HostBuffer, start: int, num_bytes: int, to: int) -> TorchCopy:
        assert isinstance(buffer, PinnedTensor), "a copy from memory that is not this device's to read"
        assert 0 <= start <= start + num_bytes <= buffer.num_bytes, "a copy from outside its buffer"
        assert 0 <= to <= to + num_bytes <= self.num_bytes, "a copy to outside the device's memory"
        try:
            with self._torch.stream(self._stream):
                self._bytes[to : to + num_bytes].copy_(buffer.bytes[start : start + num_bytes], non_blocking=True)
                event = self._torch.Event()
                event.record(self._stream)
        except RuntimeError as error:
            raise _failed(self._device, f"a copy of {format_bytes(num_bytes)} failed", error) from None
        return TorchCopy(event, num_bytes, self._device)

    def view(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The tensor of `shape` that begins `offset` bytes into the memory, which must be a multiple of its elements.

        What reads it on another stream comes after the `wait` of the copies that bring it.
        """
        num_bytes = dtype.itemsize
        for size in shape:
            num_bytes *= size
        assert 0 <= offset <= offset + num_bytes <= self.num_bytes, f"bytes from {offset} of {self.num_bytes}"
        return self._bytes[offset : offset + num_bytes].view(dtype).view(shape)

    def close(self) -> None:
        with suppress(RuntimeError):  # a device that failed: whoever waited for a copy was told
            self._stream.synchronize()
        self._bytes = torch.empty(0, dtype=torch.uint8)


def _pinned(num_bytes: int) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8).pin_memory()


def _failed(device: torch.device, what: str, error: RuntimeError) -> ResourceError:
    return ResourceError(
        f"device {device}: {what}: {str(error).splitlines()[0]}", "look what else uses it: trivet doctor"
    )
