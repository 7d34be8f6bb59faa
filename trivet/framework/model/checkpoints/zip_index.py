"""Where the members of an uncompressed zip lie in its file, every number in it checked against the file.

`zipfile` unpacks members, and reads a directory of any size into memory; tensors are read in place and the file may be
hostile. Format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, sections 4.3 and 4.5.3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trivet.base.errors import CheckpointError
from trivet.base.units import MIB

_END = struct.Struct("<4s4H2LH")  # the last record; disk numbers, counts, size and start of the directory
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_MAX_COMMENT_BYTES = 65535
_MAX_DIRECTORY_BYTES = 64 * MIB  # half a million tensors
_ENCRYPTED, _STORED = 1, 0
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF  # "see the 64-bit field"

_COPY_AGAIN = "the copy is incomplete or damaged: fetch the file again and compare its checksum with the publisher's"


@dataclass(frozen=True)
class Member:
    """A file in the zip: its bytes are those of the zip from `offset` on."""

    name: str
    offset: int
    num_bytes: int


def is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def read_zip_index(path: Path) -> dict[str, Member]:
    """The members by name. CheckpointError when the file is truncated, compressed, encrypted or contradicts itself."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            members = _members(path, file, size)
    except (struct.error, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from None
    end = 0
    for member in sorted(members.values(), key=lambda member: (member.offset, member.num_bytes)):
        if member.offset < end:
            raise _damaged(path, f"{member.name} overlaps the member before it")
        end = member.offset + member.num_bytes
    return members


def _members(path: Path, file: BinaryIO, size: int) -> dict[str, Member]:
    start, num_bytes, count = _directory(path, file, size)
    if num_bytes > _MAX_DIRECTORY_BYTES or start + num_bytes > size:
        raise _damaged(path, f"its directory has {num_bytes} bytes at {start} of {size}")
    file.seek(start)
    directory = file.read(num_bytes)
    members: dict[str, Member] = {}
    at = 0
    for _ in range(count):
        member, at = _entry(path, file, size, directory, at)
        if member.name in members:
            raise _damaged(path, f"{member.name} is there twice")
        members[member.name] = member
    return members


def _directory(path: Path, file: BinaryIO, size: int) -> tuple[int, int, int]:
    """Start and bytes of the central directory, and how many entries it has."""
    tail_start = max(0, size - _END.size - _MAX_COMMENT_BYTES)
    file.seek(tail_start)
    tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise _damaged(path, "it does not end as a zip does")
    _, _, _, _, count, num_bytes, start, _ = _END.unpack_from(tail, at)
    if count != _FULL_16 and num_bytes != _FULL_32 and start != _FULL_32:
        return start, num_bytes, count
    at -= _LOCATOR_64.size
    if at < 0 or tail[at : at + 4] != b"PK\x06\x07":
        raise _damaged(path, "its 64-bit directory is not where it should be")
    _, _, end_64, _ = _LOCATOR_64.unpack_from(tail, at)
    if end_64 + _END_64.size > size:
        raise _damaged(path, f"its 64-bit directory is at {end_64} of {size}")
    file.seek(end_64)
    signature, _, _, _, _, _, _, count, num_bytes, start = _END_64.unpack(file.read(_END_64.size))
    if signature != b"PK\x06\x06":
        raise _damaged(path, "its 64-bit directory is not where it should be")
    return start, num_bytes, count


def _entry(path: Path, file: BinaryIO, size: int, directory: bytes, at: int) -> tuple[Member, int]:
    """The member whose entry begins at `at`, and where the next one does."""
    (signature, _, _, flags, method, _, _, _, stored_bytes, num_bytes, name_bytes, extra_bytes, comment_bytes, _, _, _,
     local) = _ENTRY.unpack_from(directory, at)  # fmt: skip
    name_at, extra_at = at + _ENTRY.size, at + _ENTRY.size + name_bytes
    end = extra_at + extra_bytes + comment_bytes
    if signature != b"PK\x01\x02" or end > len(directory):
        raise _damaged(path, f"its directory is no directory at byte {at}")
    name = directory[name_at:extra_at].decode()
    if method != _STORED or flags & _ENCRYPTED:
        raise CheckpointError(
            f"{path}: {name} is compressed or encrypted, tensors are read in place", "save it again with torch.save"
        )
    wide = _wide_fields(directory[extra_at : extra_at + extra_bytes])
    num_bytes = wide.pop(0) if num_bytes == _FULL_32 and wide else num_bytes
    stored_bytes = wide.pop(0) if stored_bytes == _FULL_32 and wide else stored_bytes
    local = wide.pop(0) if local == _FULL_32 and wide else local
    if stored_bytes != num_bytes or local + _LOCAL.size > size:
        raise _damaged(path, f"{name} has {stored_bytes} bytes for {num_bytes} at {local} of {size}")
    file.seek(local)
    signature, _, _, _, _, _, _, _, _, local_name_bytes, local_extra_bytes = _LOCAL.unpack(file.read(_LOCAL.size))
    offset = local + _LOCAL.size + local_name_bytes + local_extra_bytes
    if signature != b"PK\x03\x04" or offset + num_bytes > size:
        raise _damaged(path, f"{name} has {num_bytes} bytes at {offset} of {size}")
    return Member(name, offset, num_bytes), end


def _wide_fields(extra: bytes) -> list[int]:
    """The 64-bit numbers that an entry's extra fields have, in the order of the fields they stand in for."""
    at = 0
    while at + 4 <= len(extra):
        kind, num_bytes = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            field = extra[at + 4 : at + 4 + num_bytes]
            return list(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
        at += 4 + num_bytes
    return []


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is not a whole zip: {what}", _COPY_AGAIN)
