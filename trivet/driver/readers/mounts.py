"""Reads /proc/self/mountinfo: what is mounted where, which answers for cgroups, containers and filesystems alike."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trivet.driver.readers.files import read_text


@dataclass(frozen=True)
class Mount:
    root: str  # which part of the filesystem is mounted here
    point: str
    options: tuple[str, ...]  # of this mount
    type: str
    super_options: tuple[str, ...]  # of the filesystem
    source: str  # what is mounted
    device: str  # its number, "259:2"; major 0 is no disk


def read_mounts(root: Path) -> tuple[Mount, ...] | None:
    """The mounts in the order they were made; a later one hides an earlier one at the same point."""
    text = read_text(root, "proc/self/mountinfo")
    mounts = tuple(mount for line in (text or "").splitlines() if (mount := _mount(line)) is not None)
    return mounts or None


def _mount(line: str) -> Mount | None:
    # proc_pid_mountinfo(5): id, parent, device, root, point, options, optional fields, "-", type, source, super options
    place, separator, filesystem = line.partition(" - ")
    places, kinds = place.split(" "), filesystem.split(" ")
    if not separator or len(places) < 6 or len(kinds) < 3:
        return None
    return Mount(
        root=_unescape(places[3]),
        point=_unescape(places[4]),
        options=tuple(places[5].split(",")),
        type=kinds[0],
        super_options=tuple(kinds[2].split(",")),
        source=_unescape(kinds[1]),
        device=places[2],
    )


def _unescape(text: str) -> str:
    """The kernel writes space, tab, newline and backslash in octal."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), text)
