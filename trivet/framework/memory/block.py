"""A stored block of KV cache that proves itself: what it says of itself, and the one way to believe it.

A block is a header of one page, then the bytes of one slot, in pieces that are proved one by one. Nothing is returned
that was not compared: the header's own checksum, every field with what the reader expects, and the checksum of every
piece that was read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from trivet import __version__
from trivet.base.dtypes import Array
from trivet.base.units import KIB
from trivet.framework.memory.chain import Identity, Link, digest

HEADER_BYTES = 4096  # a page, so that the payload begins on one too
FORMAT = 2

_READ_BYTES = 256 * KIB  # stays in the processor's cache between being read and being hashed
_MAGIC = b"trivetKV"
# magic, format, name, parent, tokens, salt, model, layout, writer's version, number of pieces; then the bytes and the
# XXH3 of each; at the end of the page the header's XXH3
_FIELDS = struct.Struct("<8sQ32s32s32s32s32s32s24sQ")
_PIECE = struct.Struct("<QQ")
_CHECKSUM = struct.Struct("<Q")
MAX_PIECES = (HEADER_BYTES - _FIELDS.size - _CHECKSUM.size) // _PIECE.size


class BlockError(Exception):
    """A block that is not what it is taken for; the message says in what."""


@dataclass(frozen=True)
class Header:
    """What a block says of itself. XXH3-64 finds accidents; it is no defence against who may write to the folder."""

    link: Link
    identity: Identity
    piece_bytes: tuple[int, ...]  # of the pieces that the payload consists of, one after the other
    checksums: tuple[int, ...]  # XXH3-64 of each
    writer: str = __version__

    @property
    def payload_bytes(self) -> int:
        return sum(self.piece_bytes)

    def encode(self) -> bytes:
        """The page that stands before the payload."""
        link, identity = self.link, self.identity
        assert len(self.piece_bytes) == len(self.checksums) <= MAX_PIECES, "more pieces than a page has room for"
        fields = _FIELDS.pack(
            _MAGIC, FORMAT, link.name, link.parent, link.tokens, link.salt, identity.model, identity.layout,
            self.writer.encode()[:24], len(self.piece_bytes),
        )  # fmt: skip
        pieces = b"".join(_PIECE.pack(*piece) for piece in zip(self.piece_bytes, self.checksums, strict=True))
        page = (fields + pieces).ljust(HEADER_BYTES - _CHECKSUM.size, b"\0")
        return page + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(page))


def checksum(payload: Array) -> int:
    """XXH3-64 of bytes that lie together."""
    return int(xxhash.xxh3_64_intdigest(payload.data))


def checksums(payload: Array, pieces: Sequence[slice]) -> tuple[int, ...]:
    """XXH3-64 of each piece of the bytes of a slot."""
    return tuple(checksum(payload[piece]) for piece in pieces)


def decode(page: bytes) -> Header:
    """The header in a page. Raises BlockError when it is none, damaged, or of another format."""
    if len(page) != HEADER_BYTES:
        raise BlockError(f"its header is {len(page)} bytes, wanted {HEADER_BYTES}")
    if (found := xxhash.xxh3_64_intdigest(page[: -_CHECKSUM.size])) != _CHECKSUM.unpack(page[-_CHECKSUM.size :])[0]:
        raise BlockError(f"its header has checksum {found:016x}, another is recorded")
    magic, form, *digests, writer, num_pieces = _FIELDS.unpack_from(page)
    if (magic, form) != (_MAGIC, FORMAT) or num_pieces > MAX_PIECES:
        raise BlockError(f"it is of format {form}, this trivet reads {FORMAT}")
    end = _FIELDS.size + num_pieces * _PIECE.size
    pieces = tuple(_PIECE.iter_unpack(page[_FIELDS.size : end]))
    name, parent, tokens, salt, model, layout = digests
    identity = Identity(model, layout)
    text = writer.rstrip(b"\0").decode("ascii", "replace")
    piece_bytes, found_checksums = tuple(size for size, _ in pieces), tuple(each for _, each in pieces)
    return Header(Link(name, parent, tokens, salt), identity, piece_bytes, found_checksums, text)


def read_header(file: int, link: Link, identity: Identity, pieces: Sequence[slice]) -> tuple[int, ...]:
    """The checksums that the open file has for its pieces, its header being proved to be that of `link`.

    Raises BlockError when anything differs. OSError as the file does.
    """
    page = bytearray(HEADER_BYTES)
    size, wanted_size = os.fstat(file).st_size, HEADER_BYTES + pieces[-1].stop
    if size != wanted_size:
        raise BlockError(f"it is {size} bytes, wanted {wanted_size}")
    _read_fully(file, memoryview(page), 0)
    header = decode(bytes(page))
    wanted = Header(link, identity, _sizes(pieces), header.checksums, header.writer)
    if header != wanted:
        raise BlockError(f"its {_difference(header, wanted)} is another")
    return header.checksums


def read_piece(file: int, piece: slice, recorded: int, into: Array) -> None:
    """Fill that piece of `into` (uint8, of a whole slot) from the open file.

    Raises BlockError when it has another checksum than `recorded`: then it holds bytes that must not be used. OSError
    as the file does.
    """
    _read_fully(file, into[piece].data, HEADER_BYTES + piece.start)
    if (found := checksum(into[piece])) != recorded:
        raise _changed(found, recorded)


def read_block(file: int, link: Link, identity: Identity, pieces: Sequence[slice], into: Array) -> tuple[int, ...]:
    """Fill `into` with the payload of the open file, proved to be that of `link`; the checksums of its pieces.

    Raises as `read_header` and `read_piece` do.
    """
    recorded = read_header(file, link, identity, pieces)
    _read_fully(file, into.data, HEADER_BYTES)
    for piece, wanted in zip(pieces, recorded, strict=True):
        if (found := checksum(into[piece])) != wanted:
            raise _changed(found, wanted)
    return recorded


def prove(file: int, name: bytes) -> None:
    """Read an open file to its end and raise BlockError unless it is a whole block of that name, whoever's it is."""
    page = bytearray(HEADER_BYTES)
    _read_fully(file, memoryview(page), 0)
    header = decode(bytes(page))
    if header.link.name != name or digest(header.link.parent, header.link.tokens) != name:
        raise BlockError("its name is another")
    if (size := os.fstat(file).st_size) != HEADER_BYTES + header.payload_bytes:
        raise BlockError(f"it is {size} bytes, wanted {HEADER_BYTES + header.payload_bytes}")
    buffer, start = bytearray(_READ_BYTES), HEADER_BYTES
    for size, recorded in zip(header.piece_bytes, header.checksums, strict=True):
        hasher = xxhash.xxh3_64()
        for offset in range(0, size, _READ_BYTES):
            view = memoryview(buffer)[: size - offset]
            _read_fully(file, view, start + offset)
            hasher.update(view)
        if (found := hasher.intdigest()) != recorded:
            raise _changed(found, recorded)
        start += size


def _changed(found: int, recorded: int) -> BlockError:
    return BlockError(f"its bytes have checksum {found:016x}, recorded is {recorded:016x}")


def _sizes(pieces: Sequence[slice]) -> tuple[int, ...]:
    return tuple(piece.stop - piece.start for piece in pieces)


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
        ("size", header.piece_bytes, wanted.piece_bytes),
    )
    return next(name for name, found, expected in pairs if found != expected)
