"""Reads what a shared library says of itself in its ELF file: what it needs, where to look, which versions of symbols.

Nothing is loaded or run. A file that is cut, hostile or of another class (32 bits, big-endian) is None. Source of the
numbers: the ELF specification and, for versions of symbols, the Linux Standard Base.
"""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRTAB, _STRSZ, _RPATH, _RUNPATH = 1, 5, 10, 15, 29
_VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
# Far above what any library of the stack has, and little enough to read.
_MAX_HEADERS, _MAX_ENTRIES, _MAX_NAMES_BYTES, _MAX_VERSIONS = 64, 2048, 16 << 20, 512


@dataclass(frozen=True)
class Elf:
    needed: tuple[str, ...]  # names of libraries
    search_path: tuple[str, ...]  # RUNPATH or RPATH as written, "$ORIGIN/../lib"
    asks: frozenset[str]  # versions of symbols that others must have: "GLIBC_2.34"
    offers: frozenset[str]  # versions that it defines


class _Odd(Exception):
    """The file is not what its own numbers say."""


def read_elf(path: Path) -> Elf | None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as file:
            return _parse(file)
    except (OSError, ValueError, struct.error, _Odd):
        return None


def newest(versions: frozenset[str], family: str) -> str | None:
    """Of "GLIBC_2.17" and "GLIBC_2.34" it is "2.34"; private ones do not count."""
    pattern = re.compile(rf"{family}_(\d+(?:\.\d+){{1,3}})", re.ASCII)
    found = [match[1] for each in versions if (match := pattern.fullmatch(each)) is not None]
    return max(found, key=lambda text: [int(part) for part in text.split(".")], default=None)


def _parse(file: IO[bytes]) -> Elf:
    head = _read(file, 0, 64)
    if head[:4] != b"\x7fELF" or head[4:6] != b"\x02\x01":  # 64 bits, little-endian
        raise _Odd
    offset, size, count = *struct.unpack_from("<Q", head, 32), *struct.unpack_from("<HH", head, 54)
    if size < 56 or count > _MAX_HEADERS:
        raise _Odd
    table = _read(file, offset, size * count)
    segments = [struct.unpack_from("<IIQQQQ", table, index * size) for index in range(count)]
    loads = [(address, place, length) for kind, _, place, address, _, length in segments if kind == _LOAD]
    dynamic = next(((place, length) for kind, _, place, _, _, length in segments if kind == _DYNAMIC), None)
    if dynamic is None:
        raise _Odd
    entries = list(_entries(_read(file, dynamic[0], min(dynamic[1], _MAX_ENTRIES * 16))))
    values = dict(reversed(entries))
    names = _read(file, _place(loads, values[_STRTAB]), min(values.get(_STRSZ, 0), _MAX_NAMES_BYTES)) \
        if _STRTAB in values else b""  # fmt: skip
    paths = [_name(names, value) for tag, value in entries if tag == _RUNPATH]
    paths = paths or [_name(names, value) for tag, value in entries if tag == _RPATH]
    return Elf(
        needed=tuple(_name(names, value) for tag, value in entries if tag == _NEEDED),
        search_path=tuple(part for path in paths for part in path.split(":") if part),
        asks=frozenset(_asks(file, loads, values, names)),
        offers=frozenset(_offers(file, loads, values, names)),
    )


def _entries(table: bytes) -> Iterator[tuple[int, int]]:
    for tag, value in struct.iter_unpack("<QQ", table[: len(table) // 16 * 16]):
        if tag == 0:
            return
        yield tag, value


def _asks(file: IO[bytes], loads: list[tuple[int, int, int]], values: dict[int, int], names: bytes) -> Iterator[str]:
    """Each library it needs has a chain of the versions that are asked of it."""
    if _VERNEED not in values:
        return
    place = _place(loads, values[_VERNEED])
    for _ in range(min(values.get(_VERNEEDNUM, 0), _MAX_VERSIONS)):
        _, count, _, first, following = struct.unpack("<HHIII", _read(file, place, 16))
        inner = place + first
        for _ in range(min(count, _MAX_VERSIONS)):
            _, _, _, name, step = struct.unpack("<IHHII", _read(file, inner, 16))
            yield _name(names, name)
            inner += step
        place += following


def _offers(file: IO[bytes], loads: list[tuple[int, int, int]], values: dict[int, int], names: bytes) -> Iterator[str]:
    if _VERDEF not in values:
        return
    place = _place(loads, values[_VERDEF])
    for _ in range(min(values.get(_VERDEFNUM, 0), _MAX_VERSIONS)):
        _, _, _, _, _, first, following = struct.unpack("<HHHHIII", _read(file, place, 20))
        name, _ = struct.unpack("<II", _read(file, place + first, 8))
        yield _name(names, name)
        place += following


def _place(loads: list[tuple[int, int, int]], address: int) -> int:
    """Where in the file the byte lies that is loaded at `address`."""
    for start, place, length in loads:
        if start <= address < start + length:
            return place + address - start
    raise _Odd


def _name(names: bytes, start: int) -> str:
    end = names.find(b"\0", start, start + 4096)
    if not 0 <= start < len(names) or end < 0:
        raise _Odd
    return names[start:end].decode(errors="replace")


def _read(file: IO[bytes], place: int, size: int) -> bytes:
    file.seek(place)
    content = file.read(size)
    if len(content) < size:
        raise _Odd
    return content
