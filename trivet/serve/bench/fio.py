"""fio's sequential direct reads: what another program gets from the same storage.

Into buffers of 4 KiB pages a request is cut where its list of segments ends (254 of them on a virtio disk: 1 MiB); that
halved what such a disk gave. Into huge pages it is not; fio's come from the pool of the kernel (vm.nr_hugepages), which
is empty unless somebody filled it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trivet.base.errors import ResourceError
from trivet.base.units import MIB

_BLOCK, _IN_FLIGHT = 4 * MIB, 32
_POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
_NUM_HUGE_PAGES = _BLOCK * _IN_FLIGHT // (2 * MIB) + 8  # and what fio keeps beside its buffers


def read_by_fio(files: Sequence[Path], *, use_huge_pages: bool) -> tuple[int, float]:
    """Bytes read and seconds of one pass over the files, one after another. Raises ResourceError when fio fails."""
    command = ["fio", "--name=read", f"--filename={':'.join(map(str, files))}", "--rw=read", f"--bs={_BLOCK}",
               "--direct=1", f"--iodepth={_IN_FLIGHT}", "--ioengine=io_uring", "--file_service_type=sequential",
               "--readonly", "--output-format=json", *(["--mem=mmaphuge"] if use_huge_pages else [])]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ResourceError(f"fio failed: {done.stderr.strip() or done.stdout.strip()[:200]}", "measure without it")
    read = json.loads(done.stdout)["jobs"][0]["read"]
    return read["io_bytes"], read["runtime"] / 1e3


def has_huge_pages() -> bool:
    """Whether the kernel's pool has enough free pages for fio's buffers."""
    try:
        return int((_POOL / "free_hugepages").read_text()) >= _NUM_HUGE_PAGES
    except OSError:
        return False


@contextmanager
def reserved_huge_pages() -> Iterator[bool]:
    """Fill the pool for fio's buffers and put it back afterwards; whether it has enough. Only root may."""
    pool = _POOL / "nr_hugepages"
    try:
        before = pool.read_text()
        pool.write_text(str(int(before) + _NUM_HUGE_PAGES))
    except OSError:
        yield has_huge_pages()
        return
    try:
        yield has_huge_pages()
    finally:
        pool.write_text(before)
