"""Asks the kernel whether somebody keeps its clock right: adjtimex(2) with nothing to change, which anybody may."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

from trivet.driver.facts import Clock
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.files import is_live

# struct timex on 64-bit Linux: modes, then offset, freq, maxerror and esterror as longs, then status.
_LAYOUT = struct.Struct("@iqqqqi")
_SIZE = 512  # more than the structure is
_UNSYNCHRONISED = 0x0040  # STA_UNSYNC


def read_clock(root: Path, captured: Captured) -> Clock | None:
    if not is_live(root):
        return captured.clock
    memory = ctypes.create_string_buffer(_SIZE)
    try:
        if ctypes.CDLL(None).adjtimex(memory) < 0:
            return None
    except AttributeError:  # a C library without it
        return None
    _, _, _, max_error_us, _, status = _LAYOUT.unpack_from(memory)
    return Clock(not status & _UNSYNCHRONISED, max_error_us / 1e6)
