"""Memory of a device's own, as loading needs it: pinned host buffers, and copies that run beside what the host does.

What a device brings: `null` for one that is not here, `torch_memory` for those that PyTorch drives, and NPUs by it. A
copy is truly asynchronous only out of pinned memory.
"""

from __future__ import annotations

from typing import Protocol, TypeVar


class HostBuffer(Protocol):
    """Pinned memory of the host, on a page boundary."""

    @property
    def address(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...


class Copy(Protocol):
    """A copy on its way."""

    @property
    def is_done(self) -> bool:
        """Is it over, well or not? `wait` says which."""
        ...

    def wait(self) -> None:
        """Return when the bytes are there and the buffer may be written again. Raises ResourceError if it failed."""
        ...


class DeviceMemory(Protocol):
    """One range of a device's memory, reserved whole."""

    @property
    def num_bytes(self) -> int: ...

    def host_buffer(self, num_bytes: int) -> HostBuffer:
        """Pinned memory that copies may come from. Raises ResourceError when the host gives no more."""
        ...

    def copy(self, buffer: HostBuffer, start: int, num_bytes: int, to: int) -> Copy:
        """Begin to copy bytes of the buffer to an offset in this memory. Copies arrive in the order they began."""
        ...

    def close(self) -> None:
        """Wait for every copy, then give the memory and the buffers back."""
        ...


Memory = TypeVar("Memory", bound=DeviceMemory)
