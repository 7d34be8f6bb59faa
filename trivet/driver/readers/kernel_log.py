"""Reads the kernel's log, if it may, and keeps the lines that concern NPUs, their bus, disks and lost memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trivet.driver.facts import KernelLog
from trivet.driver.readers.files import is_live, read_text

_DEVICE, CAPTURED = "/dev/kmsg", "captured/dmesg.txt"
_MAX_RECORDS, _MAX_RECORD, _MAX_LINES = 50_000, 8192, 100
_MAX_LINE = 400
# One of these is in every line that the pattern finds, and to look for them is a tenth of the work.
_WORDS = (
    *("davinci", "devdrv", "devmm", "hisi", "drv", "ascend", "npu", "error", "aer:", "pcieport"),
    *("memory", "oom", "nvme", "i/o", "blk_", "edac", "mce:"),
)
_CONCERNS = re.compile(
    r"davinci|devdrv|devmm|hisi_hdc|drv_soft_fault|\bascend|\bnpu\b"
    r"|pcie bus error|\baer:|pcieport .*(?:error|down)"
    r"|out of memory|oom-kill|oom_reaper|memory cgroup out"
    r"|nvme.*(?:timeout|error|reset|disabl|abort)|\bi/o error|blk_update_request"
    r"|hardware error|\bedac\b|\bmce:"
)


def read_kernel_log(root: Path) -> KernelLog | None:
    """The newest of those lines; None where the log may not be read, which is common outside of root."""
    source, lines = (_DEVICE, _records()) if is_live(root) else (CAPTURED, _kept(root))
    if lines is None:
        return None
    return KernelLog(
        source, tuple(line[:_MAX_LINE] for line in lines if _is_of_concern(line[:_MAX_LINE]))[-_MAX_LINES:]
    )


def _is_of_concern(line: str) -> bool:
    lower = line.lower()
    return any(word in lower for word in _WORDS) and _CONCERNS.search(lower) is not None


def _kept(root: Path) -> list[str] | None:
    text = read_text(root, CAPTURED)
    return None if text is None else text.splitlines()


def _records() -> list[str] | None:
    """Every record of the ring, each as `[seconds] message`. Reading it takes nothing out of it."""
    try:
        file = os.open(_DEVICE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    lines = []
    try:
        for _ in range(_MAX_RECORDS):
            try:
                record = os.read(file, _MAX_RECORD).decode(errors="replace")
            except BrokenPipeError:  # it was overwritten meanwhile; the next read goes on with the oldest there is
                continue
            # Priority, number, microseconds, flags; message (Linux, Documentation/ABI/testing/dev-kmsg).
            head, _, message = record.partition(";")
            times = head.split(",")
            seconds = int(times[2]) / 1e6 if len(times) > 2 and times[2].isdecimal() else 0.0
            lines.append(f"[{seconds:.6f}] {message.partition(chr(10))[0]}")
    except BlockingIOError:
        return lines
    except OSError:
        return None
    finally:
        os.close(file)
    return lines
