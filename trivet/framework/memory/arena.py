"""One range of memory, reserved whole at start and given back whole: what weights, KV and activations lie in.

It refuses to grow and knows nothing of what is laid in it.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet._native import Mapping, prefer_node
from trivet.base.dtypes import Array
from trivet.base.errors import ResourceError
from trivet.base.units import KIB, MIB, align_up, format_bytes

HUGE_PAGE_BYTES = 2 * MIB

# First and last address, and kB on huge pages, of a mapping in smaps: one pattern over all of a process's hundreds of
# mappings, at every start, is ten times as fast as a loop over their lines.
_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) .*?^AnonHugePages: +(\d+) kB$", re.MULTILINE | re.DOTALL)


class _Memory(mmap.mmap):
    """The range of addresses, and the files that stand in it: views keep it, and so both, whoever made it."""

    files: Mapping | None = None


class Arena:
    """`num_bytes` of zeroed memory that starts on a 2 MiB boundary, on huge pages where the kernel grants them.

    Pages are taken from the host when they are first touched, from the NUMA `node` while it has any. Raises
    ResourceError when the address range cannot be reserved; `knob` is the option that makes it smaller, for the
    message.
    """

    def __init__(self, num_bytes: int, name: str, knob: str | None = None, node: int | None = None) -> None:
        assert num_bytes > 0, f"arena {name}: {num_bytes} bytes"
        self.name = name
        self.num_bytes = num_bytes
        # A mapping starts on a 4 KiB boundary: reserve one huge page more and begin at the first boundary inside.
        # What lies outside is never touched, so it costs addresses and no memory.
        mapped_bytes = align_up(num_bytes, HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES
        try:
            self._mapping = _Memory(-1, mapped_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise ResourceError(
                f"{name}: needs {format_bytes(num_bytes)} of memory, and the host has not that much to give "
                f"({error}; {format_bytes(_available_bytes())} available)",
                f"lower {knob}" if knob else "free memory, or ask for less",
            ) from error
        with suppress(OSError):  # a kernel built without huge pages: correct, only slower; `trivet doctor` says so
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(self._mapping, np.uint8)
        start = -whole.ctypes.data % HUGE_PAGE_BYTES
        self._bytes = whole[start : start + num_bytes]
        self._node = node
        self._digests: Sequence[tuple[int, int, int]] = ()
        if node is not None:  # a container may forbid it: correct, only slower
            prefer_node(self.address, num_bytes, node)

    @property
    def address(self) -> int:
        return int(self._bytes.ctypes.data)

    def view(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """The array of `shape` that starts `offset` bytes into the arena; it shares the arena's memory."""
        kind: np.dtype[Any] = np.dtype(dtype)
        end = offset + int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        assert 0 <= offset <= end <= self.num_bytes, f"{self.name}: bytes {offset}..{end} of {self.num_bytes}"
        return self._bytes[offset:end].view(kind).reshape(shape)

    def map_files(
        self,
        extents: Sequence[tuple[int, int, int, int]],
        paths: Sequence[str],
        digests: Sequence[tuple[int, int, int]],
    ) -> None:
        """Have the pages of files stand for the arena's, until `take_in`: once. What was there is gone.

        An extent is (file descriptor, offset in the file, bytes, offset in the arena), in order, both offsets the same
        modulo a page; `paths` names each one's file; a digest is (offset in the arena, bytes, XXH3-64), in order. What
        is cut off a file meanwhile reads as zeros, and `trivet.framework.memory.mapped` says so. Raises OSError.
        """
        assert self._mapping.files is None, f"{self.name}: files stand in it"
        at = self.address
        self._mapping.files = Mapping([(file, offset, size, at + to) for file, offset, size, to in extents], paths)
        self._digests = digests

    def take_in(self) -> None:
        """Begin to move files that stand in the arena into memory of its own, in the background; compare digests."""
        if self._mapping.files is not None:
            at = self.address
            self._mapping.files.take_in([(at + to, size, xxh3) for to, size, xxh3 in self._digests], self._node)

    def settle(self) -> None:
        """Return when no file is being taken in."""
        while self._mapping.files is not None and not self._mapping.files.wait(1.0):
            pass

    def huge_bytes(self) -> int | None:
        """How much of what was touched lies on huge pages; None where the kernel does not say."""
        return _anonymous_huge_bytes(self.address, self.address + self.num_bytes)

    def close(self) -> None:
        """Give the memory back. Every view must be gone: one that is not raises BufferError and nothing is freed."""
        self._bytes = np.empty(0, np.uint8)
        if self._mapping.files is not None:
            self._mapping.files.stop()
        self._mapping.close()
        self._mapping.files = None

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _anonymous_huge_bytes(start: int, end: int) -> int | None:
    try:
        mappings = _MAPPING.finditer(Path("/proc/self/smaps").read_bytes())
    except OSError:
        return None
    ours = (each for each in mappings if int(each[1], 16) < end and start < int(each[2], 16))
    return min(sum(int(each[3]) * KIB for each in ours), end - start)


def _available_bytes() -> int:
    with open("/proc/meminfo") as meminfo:
        return next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable"))
