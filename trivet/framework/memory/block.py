"""A stored block of KV cache that proves itself: what it says of itself, and the one way to believe it.

A block is a header of one page, then the bytes of one slot. `read_block` returns nothing that it has not compared:
the header's own checksum, every field with what the reader expects, and the checksum of the bytes that it has read.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import xxhash

from trivet import __version__
from trivet.base.dtypes import Array
from trivet.base.units import KIB
from trivet.framework.memory.chain import Identity, Link, digest

HEADER_BYTES = 4096  # a page, so that the payload begins on one too
FORMAT = 1

_PIECE_BYTES = 256 * KIB  # stays in the processor's cache between being read and being hashed
_MAGIC = b"trivetKV"
# magic, format, name, parent, tokens, salt, model, layout, writer's version, payload's bytes and XXH3, header's XXH3
_FIELDS = struct.Struct("<8sQ32s32s32s32s32s32s24sQQ")
_CHECKSUM = struct.Struct("<Q")


class BlockError(Exception):
    """A block that is not what it is taken for; the message says in what."""


@dataclass(frozen=True)
class Header:
    """What a block says of itself. XXH3-64 finds accidents; it is no defence against who may write to the folder."""

    link: Link
    identity: Identity
    payload_bytes: int
    checksum: int  # XXH3-64 of the payload
    writer: str = __version__

    def encode(self) -> bytes:
        """The page that stands before the payload."""
        link, identity = self.link, self.identity
        fields = _FIELDS.pack(
            _MAGIC, FORMAT, link.name, link.parent, link.tokens, link.salt, identity.model, identity.layout,
            self.writer.encode()[:24], self.payload_bytes, self.checksum,
        )  # fmt: skip
        page = fields.ljust(HEADER_BYTES - _CHECKSUM.size, b"\0")
        return page + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(page))


def checksum(payload: Array) -> int:
    """XXH3-64 of the bytes of a slot."""
    return int(xxhash.xxh3_64_intdigest(payload.data))


def decode(page: bytes) -> Header:
    """The header in a page. Raises BlockError when it is none, damaged, or of another format."""
    if len(page) != HEADER_BYTES:
        raise BlockError(f"its header is {len(page)} bytes, wanted {HEADER_BYTES}")
    if (found := xxhash.xxh3_64_intdigest(page[: -_CHECKSUM.size])) != _CHECKSUM.unpack(page[-_CHECKSUM.size :])[0]:
        raise BlockError(f"its header has checksum {found:016x}, another is recorded")
    magic, form, *digests, writer, payload_bytes, payload_checksum = _FIELDS.unpack_from(page)
    if (magic, form) != (_MAGIC, FORMAT):
        raise BlockError(f"it is of format {form}, this trivet reads {FORMAT}")
    name, parent, tokens, salt, model, layout = digests
    identity = Identity(model, layout)
    text = writer.rstrip(b"\0").decode("ascii", "replace")
    return Header(Link(name, parent, tokens, salt), identity, payload_bytes, payload_checksum, text)


def read_block(file: int, link: Link, identity: Identity, into: Array) -> int:
    """Fill `into` (uint8) with the payload of the open file, proved to be that of `link`; its checksum.

    Raises BlockError when anything differs: then `into` holds bytes that must not be used. OSError as the file does.
    """
    page = bytearray(HEADER_BYTES)
    size = os.fstat(file).st_size
    if size != HEADER_BYTES + into.nbytes:
        raise BlockError(f"it is {size} bytes, wanted {HEADER_BYTES + into.nbytes}")
    _read_fully(file, memoryview(page), 0)
    header = decode(bytes(page))
    wanted = Header(link, identity, into.nbytes, header.checksum, header.writer)
    if header != wanted:
        raise BlockError(f"its {_difference(header, wanted)} is another")
    _read_fully(file, into.data, HEADER_BYTES)
    if (found := checksum(into)) != header.checksum:
        raise BlockError(f"its bytes have checksum {found:016x}, recorded is {header.checksum:016x}")
    return found


def prove(file: int, name: bytes) -> None:
    """Read an open file to its end and raise BlockError unless it is a whole block of that name, whoever's it is."""
    page = bytearray(HEADER_BYTES)
    _read_fully(file, memoryview(page), 0)
    header = decode(bytes(page))
    if header.link.name != name or digest(header.link.parent, header.link.tokens) != name:
        raise BlockError("its name is another")
    if (size := os.fstat(file).st_size) != HEADER_BYTES + header.payload_bytes:
        raise BlockError(f"it is {size} bytes, wanted {HEADER_BYTES + header.payload_bytes}")
    hasher, piece = xxhash.xxh3_64(), bytearray(_PIECE_BYTES)
    for offset in range(0, header.payload_bytes, _PIECE_BYTES):
        view = memoryview(piece)[: header.payload_bytes - offset]
        _read_fully(file, view, HEADER_BYTES + offset)
        hasher.update(view)
    if (found := hasher.intdigest()) != header.checksum:
        raise BlockError(f"its bytes have checksum {found:016x}, recorded is {header.checksum:016x}")


def _read_fully(file: int, into: memoryview, offset: int) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(file, [into[done:]], offset + done)
        if count == 0:
            raise BlockError(f"it ends after {offset + done} bytes")
        done += count


def _difference(header: Header, wanted: Header) -> str:
    pairs = (
        *((name, getattr(header.link, name), getattr(wanted.link, name)) for name in Link._fields),
        ("model", header.identity.model, wanted.identity.model),
        ("layout", header.identity.layout, wanted.identity.layout),
        ("size", header.payload_bytes, wanted.payload_bytes),
    )
    return next(name for name, found, expected in pairs if found != expected)
