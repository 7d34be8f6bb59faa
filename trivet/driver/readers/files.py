"""Reads the small files of a host's tree. Whatever is absent, unreadable or odd is None, never an exception.

A root other than "/" is a captured host. Its links may point out of the tree, and following them would tell facts of
the machine it is looked at on: such a path reads as absent.
"""

from __future__ import annotations

import os
import re
import stat
from functools import cache
from itertools import takewhile
from pathlib import Path

from trivet.driver.readers.record import note

# The longest file read here, but for one that says so, is /proc/cpuinfo: about 1.5 KB a CPU on x86.
_MAX_BYTES = 4 << 20
_PIECE_BYTES = 1 << 16
# Above any CPU or node number of Linux (CONFIG_NR_CPUS allows 8192), and small enough to list.
_MAX_ID = 1 << 16


def is_live(root: Path) -> bool:
    """Is this the machine we run on, so that the kernel may be asked what no file says?"""
    return root == Path("/")


def locate(root: Path, path: str) -> Path | None:
    """Where `path`, written from the host's own "/", lies; None where it leaves the tree."""
    place = root / path.lstrip("/")
    try:
        if not is_live(root) and os.path.commonpath((os.path.realpath(place), _real(root))) != _real(root):
            return None
    except (OSError, RuntimeError, ValueError):
        return None
    note(path)
    return place


@cache
def _real(root: Path) -> str:
    return os.path.realpath(root)


def read_text(root: Path, path: str, max_bytes: int = _MAX_BYTES) -> str | None:
    content = read_head(root, path, max_bytes)
    return content.decode(errors="replace") if content is not None else None


def read_head(root: Path, path: str, count: int) -> bytes | None:
    """The first `count` bytes of a file, or all of a shorter one."""
    place = locate(root, path)
    if place is None:
        return None
    note(path, count)
    try:
        if not stat.S_ISREG(place.stat().st_mode):  # a pipe would wait for a writer
            return None
        with place.open("rb") as file:
            # In pieces: the kernel answers ENOMEM to one large read of a file under /proc/sys.
            sizes = (min(_PIECE_BYTES, count - start) for start in range(0, count, _PIECE_BYTES))
            return b"".join(takewhile(bool, (file.read(size) for size in sizes)))
    except (OSError, ValueError):
        return None


def read_word(root: Path, path: str) -> str | None:
    """The content of a file that holds one word or one line; None if it is empty."""
    text = read_text(root, path)
    return (text.strip() or None) if text is not None else None


def read_integer(root: Path, path: str, base: int = 10) -> int | None:
    return integer(read_word(root, path), base)


def read_id_list(root: Path, path: str) -> tuple[int, ...] | None:
    text = read_text(root, path)
    return id_list(text) if text is not None else None


def list_names(root: Path, directory: str, pattern: str) -> tuple[str, ...] | None:
    """The names in `directory` that match the whole `pattern`, numbers in numeric order; None if it cannot be read."""
    place = locate(root, directory)
    if place is None:
        return None
    try:
        names = [entry.name for entry in place.iterdir() if re.fullmatch(pattern, entry.name)]
    except (OSError, ValueError):
        return None
    for name in names:
        note(f"{directory}/{name}")
    return tuple(sorted(names, key=lambda name: [(int(n or 0), text) for n, text in re.findall(r"(\d*)(\D*)", name)]))


def resolved(root: Path, path: str) -> str | None:
    """`path` without links, written from the host's own "/"; None where it does not exist or leaves the tree."""
    place = locate(root, path)
    try:
        return f"/{place.resolve(strict=True).relative_to(root.resolve())}" if place is not None else None
    except (OSError, RuntimeError, ValueError):
        return None


def exists(root: Path, path: str) -> bool:
    place = locate(root, path)
    try:
        return place is not None and place.exists()
    except (OSError, ValueError):
        return False


def integer(text: str | None, base: int = 10) -> int | None:
    """A number as the kernel writes it; None for anything else, signs and separators included."""
    digits = r"(0x)?[0-9a-fA-F]{1,16}" if base == 16 else r"[0-9]{1,19}"
    return int(text, base) if text is not None and re.fullmatch(digits, text, re.ASCII) else None


def id_list(text: str) -> tuple[int, ...] | None:
    """The kernel's list format: "0-3,8" is 0, 1, 2, 3 and 8; an empty text is the empty list."""
    ids: set[int] = set()
    for part in text.strip().split(","):
        if not text.strip():
            break
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip(), re.ASCII)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < _MAX_ID:
            return None
        ids.update(range(first, last + 1))
    return tuple(sorted(ids))
