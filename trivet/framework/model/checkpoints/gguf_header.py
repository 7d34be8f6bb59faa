"""The header of a GGUF file: metadata and where each tensor lies, every length checked against the file.

The `gguf` package's own reader keeps each string as an array, which takes seconds for a vocabulary, and reads past
the end of a truncated file; that package is used for what it alone knows, the block formats.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from trivet.base.errors import CheckpointError
from trivet.base.units import align_up

MAGIC = b"GGUF"

_SCALARS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_COPY_AGAIN = "the copy is incomplete or damaged: fetch the file again and compare its checksum with the publisher's"


@dataclass(frozen=True)
class GgufTensor:
    """A tensor in the file; `shape` slowest axis first, `offset` from the start of the file."""

    name: str
    format: str  # F32, Q4_1
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def read_gguf_header(path: Path) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    """The metadata and the tensors by name. CheckpointError when the file is not GGUF, truncated or inconsistent."""
    size = path.stat().st_size
    if size < 24:
        raise CheckpointError(f"{path} is {size} bytes, too short for a GGUF header", _COPY_AGAIN)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        cursor = _Cursor(path, content)
        if cursor.take(4) != MAGIC:
            raise CheckpointError(f"{path} does not begin with GGUF: it is another kind of file")
        version = cursor.scalar("u4")
        if version not in (2, 3):
            raise CheckpointError(
                f"{path}: GGUF version {version} is not known, 2 or 3 (little-endian) was wanted",
                "convert the model again with a current llama.cpp",
            )
        num_tensors, num_keys = cursor.scalar("u8"), cursor.scalar("u8")
        metadata = {cursor.string(): cursor.value(cursor.scalar("u4")) for _ in range(num_keys)}
        entries = [_read_entry(cursor) for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise CheckpointError(f"{path}: general.alignment is {alignment!r}, a whole number was wanted", _COPY_AGAIN)
        data_start = align_up(cursor.offset, alignment)
    tensors: dict[str, GgufTensor] = {}
    for name, format_id, shape, offset in entries:
        if name in tensors:
            raise CheckpointError(f"{path}: tensor {name} is there twice", _COPY_AGAIN)
        tensors[name] = _tensor(path, name, format_id, shape, data_start + offset)
    end = max((tensor.offset + tensor.num_bytes for tensor in tensors.values()), default=data_start)
    if end > size:
        raise CheckpointError(f"{path} is {size} bytes, its header wants {end}", _COPY_AGAIN)
    return metadata, tensors


class _Cursor:
    """A place in the mapped file that moves forward and never beyond the end."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self._path = path
        self._content = content
        self.offset = 0

    def take(self, count: int) -> bytes:
        if count > len(self._content) - self.offset:
            raise CheckpointError(
                f"{self._path}: the header wants {count} bytes at {self.offset}, the file is {len(self._content)}",
                _COPY_AGAIN,
            )
        self.offset += count
        return self._content[self.offset - count : self.offset]

    def scalar(self, dtype: str) -> Any:
        return self.array(dtype, 1)[0]

    def array(self, dtype: str, count: int) -> list[Any]:
        item = np.dtype(dtype).newbyteorder("<")
        values: list[Any] = np.frombuffer(self.take(item.itemsize * count), item).tolist()
        return values

    def string(self) -> str:
        # The one call made for each of a vocabulary's entries, hence no array
        (length,) = struct.unpack("<Q", self.take(8))
        start = self.offset
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise CheckpointError(f"{self._path}: the string at byte {start} is not UTF-8", _COPY_AGAIN) from None

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind != _ARRAY:
            raise CheckpointError(f"{self._path}: metadata of unknown type {kind} at byte {self.offset}", _COPY_AGAIN)
        kind, count = self.scalar("u4"), self.scalar("u8")
        if kind in _SCALARS:
            return self.array(_SCALARS[kind], count)
        if kind != _STRING:
            raise CheckpointError(f"{self._path}: an array of unknown type {kind} at byte {self.offset}", _COPY_AGAIN)
        return [self.string() for _ in range(count)]


def _read_entry(cursor: _Cursor) -> tuple[str, int, tuple[int, ...], int]:
    name = cursor.string()
    num_dimensions = cursor.scalar("u4")
    shape = tuple(reversed(cursor.array("u8", num_dimensions)))
    return name, cursor.scalar("u4"), shape, cursor.scalar("u8")


def _tensor(path: Path, name: str, format_id: int, shape: tuple[int, ...], offset: int) -> GgufTensor:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType  # a tenth of a second, for GGUF files only

    if format_id not in [known.value for known in GGMLQuantizationType]:
        raise CheckpointError(f"{path}: tensor {name} has the unknown format number {format_id}", _COPY_AGAIN)
    block_items, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(format_id)]
    if not 1 <= len(shape) <= _MAX_DIMENSIONS or min(shape) < 1 or shape[-1] % block_items:
        raise CheckpointError(
            f"{path}: tensor {name} has the shape {list(shape)}, rows of whole blocks of {block_items} were wanted",
            _COPY_AGAIN,
        )
    num_bytes = prod(shape) // block_items * block_bytes
    return GgufTensor(name, GGMLQuantizationType(format_id).name, shape, offset, num_bytes)
