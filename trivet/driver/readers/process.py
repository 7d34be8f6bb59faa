"""Reads what this process is and may do, and which programs run beside it, from /proc."""

from __future__ import annotations

import re
from pathlib import Path

from trivet.driver.facts import Container, Process
from trivet.driver.readers.files import integer, list_names, read_text, read_word

_MAX_PROCESSES = 100_000


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


def read_has_irqbalance(root: Path, container: Container | None) -> bool | None:
    """Does irqbalance run? That it is not seen says something only where all processes are seen."""
    numbers = list_names(root, "proc", r"\d{1,9}")
    if not numbers:
        return None
    if any(read_word(root, f"proc/{number}/comm") == "irqbalance" for number in numbers[:_MAX_PROCESSES]):
        return True
    return False if container is not None and container.kind == "none" and len(numbers) > 1 else None


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


def _ids(words: list[str] | None) -> tuple[int, ...] | None:
    ids = [integer(word) for word in words] if words is not None else [None]
    return tuple(known) if len(known := [each for each in ids if each is not None]) == len(ids) else None
