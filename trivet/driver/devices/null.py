"""A pretend device with memory of its own: host code that touches it dies, and only its copy engine may write there.

It stands in for one that is not here: what moves bytes to a device is tested on it, in order, reuse, overlap, errors.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from trivet.base.errors import ResourceError
from trivet.base.units import align_up
from trivet.driver.devices.memory import HostBuffer

_MEMORY_FILE = "/proc/self/mem"  # writes through it do not ask for the protection of a private mapping


class PinnedBuffer:
    """Host memory that is locked where the limit of locked memory allows it."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._mapping = mmap.mmap(-1, align_up(num_bytes, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        _libc().mlock(ctypes.c_void_p(self.address), ctypes.c_size_t(num_bytes))

    def close(self) -> None:
        self._mapping.close()


@dataclass
class NullCopy:
    """A copy in the queue of the device's engine."""

    source: int
    num_bytes: int
    to: int
    done: threading.Event = field(default_factory=threading.Event)
    failure: ResourceError | None = None

    @property
    def is_done(self) -> bool:
        return self.done.is_set()

    def wait(self) -> None:
        self.done.wait()
        if self.failure is not None:
            raise self.failure


class NullMemory:
    """`num_bytes` of a pretend device. Its pages, and one on either side, may be neither read nor written by the host.

    `before_copy` is called with each copy before it is made, in the engine's thread: a test holds it up there, or
    raises OSError for a link that fails. `read` is the device's own way back, for comparing.
    """

    def __init__(self, num_bytes: int, before_copy: Callable[[NullCopy], None] = lambda copy: None) -> None:
        self.num_bytes = num_bytes
        self._before_copy = before_copy
        guarded = align_up(num_bytes, mmap.PAGESIZE) + 2 * mmap.PAGESIZE
        try:
            self._mapping = mmap.mmap(-1, guarded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise ResourceError(f"device null: {num_bytes} bytes of memory: {error}", "ask for less") from None
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        _libc().mprotect(ctypes.c_void_p(start), ctypes.c_size_t(guarded), 0)  # 0: PROT_NONE
        self.address = start + mmap.PAGESIZE
        self._file = os.open(_MEMORY_FILE, os.O_RDWR | os.O_CLOEXEC)
        self._buffers: list[PinnedBuffer] = []
        self._copies: queue.SimpleQueue[NullCopy | None] = queue.SimpleQueue()
        self._engine = threading.Thread(target=self._work, name="null device", daemon=True)
        self._engine.start()

    def host_buffer(self, num_bytes: int) -> PinnedBuffer:
        self._buffers.append(PinnedBuffer(num_bytes))
        return self._buffers[-1]

    def copy(self, buffer: HostBuffer, start: int, num_bytes: int, to: int) -> NullCopy:
        assert 0 <= start <= start + num_bytes <= buffer.num_bytes, "a copy from outside its buffer"
        assert 0 <= to <= to + num_bytes <= self.num_bytes, "a copy to outside the device"
        begun = NullCopy(buffer.address + start, num_bytes, to)
        self._copies.put(begun)
        return begun

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Bytes of the device, read behind the back of the protection."""
        return os.pread(self._file, num_bytes, self.address + offset)

    def close(self) -> None:
        self._copies.put(None)
        self._engine.join()
        os.close(self._file)
        self._mapping.close()
        for buffer in self._buffers:
            buffer.close()

    def _work(self) -> None:
        while (copy := self._copies.get()) is not None:
            try:
                self._before_copy(copy)
                self._write(copy)
            except OSError as error:
                copy.failure = ResourceError(f"device null: a copy of {copy.num_bytes} bytes failed: {error.strerror}")
            copy.done.set()

    def _write(self, copy: NullCopy) -> None:
        done = 0
        while done < copy.num_bytes:
            chunk = (ctypes.c_char * (copy.num_bytes - done)).from_address(copy.source + done)
            done += os.pwrite(self._file, chunk, self.address + copy.to + done)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
