"""How long from nothing to the first token: a fresh process with a package, its files cold and in the page cache.

The caller must not have the package open: pages that a process maps cannot be dropped.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from trivet.base.errors import ResourceError
from trivet.base.units import MIB
from trivet.serve.bench.figure import Measurement

_PROMPT = "The capital of France is"
_READ_BYTES = 4 * MIB


def measure_load(
    package: Path, weight_bytes: int, *, threads: int, repeats: int, tell: Callable[[str], None]
) -> list[Measurement]:
    """First the storage's own speed with the package's files, then the cold and the warm start.

    Cold means that this system's page cache has dropped the files; a host below a virtual machine, or the storage
    itself, may still have them in a cache of its own. How much was left is in the settings.
    """
    files = sorted(file for file in package.iterdir() if file.is_file())
    num_bytes = sum(file.stat().st_size for file in files)
    reads, colds, warms, cached = [], [], [], []
    for i in range(repeats):
        tell(f"first token, start {i + 1} of {repeats}")
        drop_from_page_cache(files)
        reads.append(num_bytes / read_through(files))
        drop_from_page_cache(files)
        cached.append(cached_share(files))
        colds.append(first_token_s(package, threads))
        read_through(files)  # a cold start reads past the page cache
        warms.append(first_token_s(package, threads))
    known = [share for share in cached if share is not None]
    left = round(max(known), 3) if known else None
    return [
        Measurement("limits", "storage", "bytes/s", tuple(reads), settings={"cached_share": left}),
        Measurement(
            "load", "first token, cold", "s", tuple(colds), {"storage": num_bytes, "memory": weight_bytes},
            {"files": "cold", "cached_share": left},
        ),
        Measurement("load", "first token, warm", "s", tuple(warms), {"memory": weight_bytes}, {"files": "warm"}),
    ]  # fmt: skip


def first_token_s(package: Path, threads: int) -> float:
    """Seconds from the start of a process of its own until it wrote the first token.

    Raises ResourceError with the process's own words when it fails.
    """
    program = "from trivet.cli import main; main()"
    options = ["--raw", "--max-tokens", "1", "--threads", str(threads)]
    command = [sys.executable, "-c", program, "generate", str(package), _PROMPT, *options]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - start
        _, errors = process.communicate()
    if process.returncode != 0:
        reason = errors.decode(errors="replace").strip() or f"exit status {process.returncode}"
        raise ResourceError(f"{package}: trivet generate failed in a process of its own: {reason}")
    return seconds


def drop_from_page_cache(files: list[Path]) -> None:
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())  # a page that is not written back yet would stay
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_through(files: list[Path]) -> float:
    """Seconds of reading every file once, from one thread."""
    buffer = bytearray(_READ_BYTES)
    start = time.perf_counter()
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass
    return time.perf_counter() - start


def cached_share(files: list[Path]) -> float | None:
    """How much of the files is in the page cache, 0 to 1; None where the system does not say."""
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    num_pages = num_cached = 0
    for file in files:
        if file.stat().st_size == 0:
            continue
        with file.open("rb") as opened:
            mapped = np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        pages = np.zeros(-(-mapped.size // mmap.PAGESIZE), np.uint8)
        if mincore(mapped.ctypes.data, mapped.size, pages.ctypes.data) != 0:
            return None
        num_pages += pages.size
        num_cached += int((pages & 1).sum())
    return num_cached / max(num_pages, 1)
