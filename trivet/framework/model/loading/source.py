"""What is true of a file that is about to be read: what holds it, whether it can be read directly, how much is cached.

It reads the world and judges nothing.
"""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from trivet._native import residency
from trivet.base.errors import CheckpointError
from trivet.driver.readers.filesystem import read_filesystem
from trivet.framework.model.loading.extents import BLOCK_BYTES


@dataclass(frozen=True)
class FileFacts:
    """What is true of a file, however much of it is read."""

    path: Path
    num_bytes: int
    filesystem: str | None  # its type, as in /proc/mounts; None if unknown
    direct_refusal: str | None  # why it cannot be read with O_DIRECT; None if it can
    map_refusal: str | None = None  # why its pages cannot be memory's; None if they can


class Source:
    """An open file: one descriptor through the page cache and, where that is possible, one past it.

    Raises CheckpointError when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.buffered = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be opened: {error.strerror}", _HINTS.get(error.errno or 0)) from None
        self.direct, refusal = _open_direct(path)
        mounted = read_filesystem(Path("/"), str(path.absolute()))
        num_bytes = os.fstat(self.buffered).st_size
        self.facts = FileFacts(path, num_bytes, mounted.type, refusal, _map_refusal(self.buffered, num_bytes))

    def resident_share(self, offset: int, num_bytes: int) -> float | None:
        """How much of a range is in the page cache, 0 to 1; None where the kernel does not say."""
        found = residency(self.buffered, offset, num_bytes)
        return None if found is None else found[0]

    def close(self) -> None:
        os.close(self.buffered)
        if self.direct is not None:
            os.close(self.direct)

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_POPULATE_READ = 22  # of linux/mman.h: map the pages now, and say where that cannot be

_HINTS = {
    errno.ENOENT: "copy the model again, with all its files, or convert it again",
    errno.EACCES: "let this user read it",
    errno.EMFILE: "raise the limit of open files: ulimit -n 4096",
}


def _map_refusal(file: int, num_bytes: int) -> str | None:
    """Why a part of the file cannot be mapped where a block of memory would be, or None: it was tried with a byte."""
    if mmap.PAGESIZE != BLOCK_BYTES:
        return f"mmap: pages here are of {mmap.PAGESIZE} bytes, not of {BLOCK_BYTES}"
    try:
        with mmap.mmap(file, min(num_bytes, 1), mmap.MAP_PRIVATE, mmap.PROT_READ) as block:
            block.madvise(_POPULATE_READ)
    except (OSError, ValueError) as error:  # it is empty, of huge pages, or the kernel older than 5.14
        return f"mmap: {error}"
    return None


def _open_direct(path: Path) -> tuple[int | None, str | None]:
    """A descriptor with O_DIRECT that was tried with one block, or why there is none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError as error:
        return None, f"O_DIRECT: {error.strerror}"
    try:
        with mmap.mmap(-1, BLOCK_BYTES) as block:
            os.preadv(file, [block], 0)
    except OSError as error:
        os.close(file)
        return None, f"O_DIRECT in blocks of {BLOCK_BYTES}: {error.strerror}"
    return file, None
