"""Reads what this process is and may do, and which programs run beside it, from /proc."""

from __future__ import annotations

import re
from pathlib import Path

from trivet.driver.facts import Process
from trivet.driver.npu_facts import NpuProcess
from trivet.driver.placement_facts import Container
from trivet.driver.readers.files import integer, list_names, read_text, read_word

_MAX_PROCESSES = 100_000
PROGRAMS = ("irqbalance", "raylet")  # whose names are anybody's business here


def read_process(root: Path) -> Process | None:
    text = read_text(root, "proc/self/status")
    if text is None:
        return None
    rows = {name: value.split() for name, _, value in (line.partition(":") for line in text.splitlines())}
    users, groups, more = (_ids(rows.get(name)) for name in ("Uid", "Gid", "Groups"))
    return Process(
        uid=users[1] if users and len(users) == 4 else None,  # real, effective, saved, of the filesystem
        gids=tuple(dict.fromkeys((groups[1], *more))) if groups and len(groups) == 4 and more is not None else None,
        capabilities=integer("".join(rows.get("CapEff", ())), 16),
        seccomp=integer("".join(rows.get("Seccomp", ()))),
    )


def read_programs(root: Path) -> dict[int, str] | None:
    """The processes that are seen here by their numbers, with the names of those that are looked for."""
    numbers = list_names(root, "proc", r"\d{1,9}")
    if not numbers:
        return None
    names = {int(number): read_word(root, f"proc/{number}/comm") or "" for number in numbers[:_MAX_PROCESSES]}
    return {number: name if name in PROGRAMS else "" for number, name in names.items()}


def has_irqbalance(programs: dict[int, str] | None, container: Container | None) -> bool | None:
    """Does irqbalance run? That it is not seen says something only where all processes are seen."""
    if programs is not None and "irqbalance" in programs.values():
        return True
    return False if programs is not None and _sees_all(programs, container) else None


def gone(
    processes: tuple[NpuProcess, ...] | None, programs: dict[int, str] | None, container: Container | None
) -> tuple[int, ...] | None:
    """The processes of NPUs that this host does not have; None where it may not see all it has."""
    if processes is None or programs is None or not _sees_all(programs, container):
        return None
    return tuple(sorted({each.pid for each in processes} - programs.keys()))


def _sees_all(programs: dict[int, str], container: Container | None) -> bool:
    return container is not None and container.kind == "none" and len(programs) > 1


def read_listening_ports(root: Path) -> tuple[int, ...] | None:
    """The TCP ports that somebody listens on, in order."""
    texts = [read_text(root, f"proc/net/{name}") for name in ("tcp", "tcp6")]
    if texts[0] is None:
        return None
    # Number, local address and port, remote ones, state: 0A is LISTEN (proc_net_tcp in the Linux documentation).
    rows = re.findall(
        r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A ", "\n".join(filter(None, texts)), re.M
    )
    return tuple(sorted({int(port, 16) for port in rows}))


def read_local_addresses(root: Path) -> tuple[str, ...] | None:
    """The IPv4 addresses of this host's interfaces, in order, from the kernel's table of routes."""
    text = read_text(root, "proc/net/fib_trie")
    if text is None:
        return None
    rows = re.findall(r"\|-- (\d{1,3}(?:\.\d{1,3}){3})\n\s*/32 host LOCAL", text, re.ASCII)
    return tuple(dict.fromkeys(rows))


def _ids(words: list[str] | None) -> tuple[int, ...] | None:
    ids = [integer(word) for word in words] if words is not None else [None]
    return tuple(known) if len(known := [each for each in ids if each is not None]) == len(ids) else None
