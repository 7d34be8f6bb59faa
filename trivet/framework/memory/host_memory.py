"""Memory of the host where loading wants a device's: an arena, and copies that are done when they have begun."""

from __future__ import annotations

import ctypes

from trivet.driver.devices.memory import HostBuffer
from trivet.framework.memory.arena import Arena


class DoneCopy:
    """The CPU copies while it is asked to."""

    is_done = True

    def wait(self) -> None:
        pass


class HostMemory:
    """An arena as `trivet.driver.devices.memory.DeviceMemory`. Raises what Arena raises."""

    def __init__(self, num_bytes: int, node: int | None = None) -> None:
        self.num_bytes = num_bytes
        self.arena = Arena(num_bytes, "weights", node=node)

    def host_buffer(self, num_bytes: int) -> Arena:
        return Arena(num_bytes, "a buffer")

    def copy(self, buffer: HostBuffer, start: int, num_bytes: int, to: int) -> DoneCopy:
        assert 0 <= to <= to + num_bytes <= self.num_bytes, "a copy to outside the arena"
        ctypes.memmove(self.arena.address + to, buffer.address + start, num_bytes)
        return DoneCopy()

    def close(self) -> None:
        self.arena.close()
