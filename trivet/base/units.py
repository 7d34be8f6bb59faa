"""Numbers as people read and write them."""

from __future__ import annotations

import re

from trivet.base.errors import TrivetError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_SUFFIXES = {"": 1, "b": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1 << 40}


def format_bytes(count: float) -> str:
    """`2147483648` as `2.0 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def parse_bytes(text: str) -> int:
    """`2GiB`, `512m` or `4096` as a number of bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if match is None:
        raise TrivetError(f"{text!r} is not a size", "write a number with a unit, such as 512MiB or 2GiB")
    return int(float(match[1]) * _SUFFIXES[match[2]])


def format_seconds(seconds: float) -> str:
    """`0.0123` as `12.3 ms`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:.1f} min"


def align_up(value: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple
