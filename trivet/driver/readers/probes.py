"""Tries what no file tells: reading where a model lies, and locking memory. Only on request, and on the live host only.

It writes nothing. A network file system may hang; who waits for it here gives up, and says that nothing was read.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Thread

from trivet.driver.facts import Interrupt
from trivet.driver.placement_facts import PciDevice
from trivet.driver.probe_facts import PinningProbe, ReadingProbe
from trivet.driver.readers.interrupts import read_interrupts

_LIVE = Path("/")
_STORAGE = 0x01  # PCI class
_NUM_BYTES = 16 << 20
_READ_BYTES = 1 << 20
_BLOCK_BYTES = 4096  # what O_DIRECT wants multiples of, 512 or 4096
_TIMEOUT_S = 2.0
_PINNED_BYTES = 64 << 20  # above the 8 MiB that a process may lock by default
_MAX_ENTRIES = 1000


def probe_reading(path: str, pci: tuple[PciDevice, ...] | None) -> ReadingProbe:
    """Reads the first 16 MiB of a file at or below `path`, past the page cache where that is possible."""
    from trivet._native import ring_refusal  # a probe's only need of it, and doctor starts without it

    found = [ReadingProbe(path, None, None, ring_refusal() or None, None, None, None)]

    def read() -> None:
        file = next((each for each in _files(Path(path)) if each.stat().st_size >= _BLOCK_BYTES), None)
        if file is not None:
            found[0] = replace(found[0], file=str(file))
            found[0] = _read(found[0], file, pci)

    thread = Thread(target=read, daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    return found[0]


def probe_pinning() -> PinningProbe:
    """Locks 64 MiB for a moment, as a buffer is that an NPU copies from."""
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(-1, _PINNED_BYTES) as memory:
        view = ctypes.c_char.from_buffer(memory)
        address = ctypes.c_void_p(ctypes.addressof(view))
        refused = libc.mlock(address, ctypes.c_size_t(_PINNED_BYTES)) != 0
        error = ctypes.get_errno()
        libc.munlock(address, ctypes.c_size_t(_PINNED_BYTES))
        del view  # or the mapping could not be closed
    return PinningProbe(_PINNED_BYTES, not refused, os.strerror(error) if refused else None)


def _files(path: Path) -> Iterator[Path]:
    """The file itself, or those in the folder and in the folders directly below."""
    if path.is_file():
        yield path
        return
    for pattern in ("*", "*/*"):
        yield from (each for each in islice(path.glob(pattern), _MAX_ENTRIES) if each.is_file())


def _read(probe: ReadingProbe, file: Path, pci: tuple[PciDevice, ...] | None) -> ReadingProbe:
    disks = tuple(device for device in pci if device.class_code >> 16 == _STORAGE) if pci is not None else None
    before, start = read_interrupts(_LIVE, disks), time.perf_counter()
    num_bytes, refusal = _read_past_cache(file)
    if refusal is not None:
        start = time.perf_counter()
        num_bytes = _read_plainly(file)
    seconds = time.perf_counter() - start
    return replace(
        probe,
        direct_refusal=refusal,
        num_bytes=num_bytes,
        seconds=None if num_bytes is None else seconds,
        interrupts=_between(before, read_interrupts(_LIVE, disks)),
    )


def _read_past_cache(file: Path) -> tuple[int | None, str | None]:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        return None, error.strerror
    try:
        with mmap.mmap(-1, _READ_BYTES) as memory:  # O_DIRECT wants an address that is a multiple too
            num_bytes = 0
            while num_bytes < _NUM_BYTES and (count := os.preadv(descriptor, [memory], num_bytes)) > 0:
                num_bytes += count
                if count % _BLOCK_BYTES:  # the end of the file
                    break
            return num_bytes, None
    except OSError as error:
        return None, error.strerror
    finally:
        os.close(descriptor)


def _read_plainly(file: Path) -> int | None:
    try:
        with file.open("rb") as stream:
            return len(stream.read(_NUM_BYTES))
    except OSError:
        return None


def _between(before: tuple[Interrupt, ...] | None, after: tuple[Interrupt, ...] | None) -> dict[str, int] | None:
    if before is None or after is None:
        return None
    counts = {interrupt.number: interrupt.count for interrupt in before}
    grown = {interrupt.name: interrupt.count - counts.get(interrupt.number, 0) for interrupt in after}
    return {name: count for name, count in grown.items() if count > 0}
