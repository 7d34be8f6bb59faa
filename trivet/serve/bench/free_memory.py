"""Free memory, touched before a measurement: so that nobody pays for what the host of a virtual machine took back.

Such a host may take free memory of its guest, and whoever touches it next waits until it is given again: for 4 GiB that
was four times a load's own CPU time, and who came after whom decided the figures. Where memory is the machine's own,
this changes nothing.
"""

from __future__ import annotations

import subprocess
import sys

# A program for any interpreter. All of the free memory but a GiB for whoever else runs, in huge pages.
TOUCH = """
import mmap, re
free = int(re.search(r"MemFree:\\s+(\\d+)", open("/proc/meminfo").read())[1]) << 10
with mmap.mmap(-1, max(free - (1 << 30), mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
    memory.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = 1
"""


def touch_free_memory() -> None:
    """Touch it and give it back, in a process of its own."""
    subprocess.run([sys.executable, "-c", TOUCH], check=True)
