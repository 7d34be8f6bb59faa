"""What the fake has counted: copies, bytes, waits, allocations, and the launches of each operator by name."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Counters:
    """Since the start or the last reset. What was never counted has no entry: ask with get(name, 0)."""

    counters: Mapping[str, int]
    launches: Mapping[str, int]


def _library() -> ctypes.CDLL:
    folder = os.environ.get("FAKECANN")
    if folder is None:
        raise RuntimeError("fakecann: this process does not run over it; start it with python -m ascend.fakecann.run")
    library = ctypes.CDLL(str(Path(folder) / "libfakecann.so"))
    library.fakecann_counters.restype = ctypes.c_char_p
    return library


def read() -> Counters:
    """The counters now. Raises RuntimeError where the process does not run over the fake."""
    read = json.loads(_library().fakecann_counters())
    return Counters(read["counters"], read["launches"])


def reset() -> None:
    """All counters to nothing. Raises RuntimeError where the process does not run over the fake."""
    _library().fakecann_reset_counters()
