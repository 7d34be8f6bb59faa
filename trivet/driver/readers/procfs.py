"""Reads /proc: the CPU's name and instruction sets, memory, limits of the process, its affinity, kernel settings."""

from __future__ import annotations

import re
from pathlib import Path

from trivet.driver.placement_facts import Limit, ProcessLimit, ProcessLimits
from trivet.driver.readers.files import id_list, integer, read_text, read_word

# The instruction sets that a kernel target asks for, or that a reader of the report wants to see: x86, then Arm.
_FEATURES = (
    *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni", "amx_bf16"),
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)

# /proc/cpuinfo of Arm gives numbers for a name: (implementer, part). Source: util-linux, sys-utils/lscpu-arm.c.
_ARM_PARTS = {("0x48", "0xd01"): "Kunpeng-920"}


def read_model(root: Path) -> str | None:
    """The CPU's name: as the kernel prints it on x86, from its implementer and part number on Arm."""
    cpu = _first_cpu(root)
    if "model name" in cpu:
        return cpu["model name"]
    implementer, part = cpu.get("CPU implementer"), cpu.get("CPU part")
    if implementer is None or part is None:
        return None
    return _ARM_PARTS.get((implementer, part), f"Arm implementer {implementer} part {part}")


def read_features(root: Path) -> tuple[str, ...] | None:
    cpu = _first_cpu(root)
    return features_of(cpu.get("flags") or cpu.get("Features"))


def features_of(flags: str | None) -> tuple[str, ...] | None:
    """Of the flags that the kernel or lscpu lists, those that matter here."""
    if flags is None:
        return None
    present = set(flags.split())
    return tuple(feature for feature in _FEATURES if feature in present)


def read_allowed(root: Path) -> tuple[int, ...] | None:
    """The CPUs that this process may run on: its affinity mask, already cut to its cpuset."""
    match = re.search(r"^Cpus_allowed_list:[ \t]*(.+)$", read_text(root, "proc/self/status") or "", re.MULTILINE)
    return (id_list(match[1]) or None) if match else None


def read_meminfo(root: Path) -> dict[str, int]:
    """Every row of /proc/meminfo that is a size, in bytes."""
    return sizes(read_text(root, "proc/meminfo") or "")


def sizes(text: str) -> dict[str, int]:
    """The rows `Name:  123 kB` of a text, in bytes; sysfs puts `Node 0` before each name."""
    rows = re.findall(r"^(?:Node \d+ )?(\w+):[ \t]+(\d{1,15}) kB[ \t]*$", text, re.MULTILINE | re.ASCII)
    return {name: int(kib) << 10 for name, kib in rows}


def read_limits(root: Path) -> ProcessLimits:
    text = read_text(root, "proc/self/limits") or ""
    return ProcessLimits(
        open_files=_limit(text, "Max open files"),
        locked_memory_bytes=_limit(text, "Max locked memory"),
        processes=_limit(text, "Max processes"),
        core_file_bytes=_limit(text, "Max core file size"),
    )


def read_kernel(root: Path) -> str | None:
    return read_word(root, "proc/sys/kernel/osrelease")


def read_numa_balancing(root: Path) -> bool | None:
    """Does the kernel unmap pages now and then, to see which node touches them? (1 balances, 2 tiers memory.)"""
    mode = integer(read_word(root, "proc/sys/kernel/numa_balancing"))
    return None if mode is None else bool(mode & 1)


def _first_cpu(root: Path) -> dict[str, str]:
    """The first block of /proc/cpuinfo: cores that differ share the instruction sets that user space may see."""
    block = (read_text(root, "proc/cpuinfo") or "").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon and value.strip()}


def _limit(text: str, name: str) -> ProcessLimit | None:
    match = re.search(rf"^{name}[ \t]+(\w+)[ \t]+(\w+)", text, re.MULTILINE)
    if match is None:
        return None
    soft, hard = _bound(match[1]), _bound(match[2])
    return None if soft is None or hard is None else ProcessLimit(soft, hard)


def _bound(word: str) -> Limit | None:
    return "unlimited" if word == "unlimited" else integer(word)
