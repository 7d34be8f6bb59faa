"""The header of a safetensors file: 8 bytes of length, then JSON that says where each tensor lies. Read and written.

The `safetensors` package gives tensors through an array framework and hides offsets, which reading by rows and
placing tensors on page boundaries need; the format is simple enough to check in full here.
Format: https://huggingface.co/docs/safetensors, section Format.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from trivet.base.errors import CheckpointError
from trivet.base.units import align_up
from trivet.framework.model.checkpoints.stored import ITEM_BITS, StoredTensor, are_counts

_MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation

_COPY_AGAIN = "the copy is incomplete or damaged: fetch the file again and compare its checksum with the publisher's"


def read_header(path: Path) -> tuple[StoredTensor, ...]:
    """The file's tensors in the order in which they lie.

    Raises CheckpointError unless the header tells the whole truth: known formats, sizes that follow from shapes,
    tensors that fill the file without a hole or an overlap.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if size < 8 or header_bytes > min(size - 8, _MAX_HEADER_BYTES):
            raise CheckpointError(
                f"{path} is {size} bytes, its header wants {8 + header_bytes}: truncated or not safetensors",
                _COPY_AGAIN,
            )
        text = file.read(header_bytes)
    document = _parse(path, text)
    document.pop("__metadata__", None)
    tensors = sorted(
        (_stored_tensor(path, name, entry, 8 + header_bytes) for name, entry in document.items()),
        key=lambda tensor: (tensor.offset, tensor.num_bytes),
    )
    end = 8 + header_bytes
    for tensor in tensors:
        if tensor.offset != end:
            raise CheckpointError(
                f"{path}: tensor {tensor.name} starts at byte {tensor.offset}, {end} was wanted:"
                " tensors may neither overlap nor leave holes",
                _COPY_AGAIN,
            )
        end += tensor.num_bytes
    if end != size:
        raise CheckpointError(f"{path} is {size} bytes, its header wants {end}", _COPY_AGAIN)
    return tuple(tensors)


def format_header(tensors: Sequence[tuple[str, str, tuple[int, ...], int]], alignment: int) -> bytes:
    """The header of a file that holds (name, dtype, shape, bytes) one after the other.

    Padded with spaces, which the format allows after the JSON, so that the tensors begin at a multiple of `alignment`.
    """
    document, end = {}, 0
    for name, dtype, shape, num_bytes in tensors:
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    text = json.dumps(document, separators=(",", ":")).encode()
    text = text.ljust(align_up(8 + len(text), alignment) - 8)
    return len(text).to_bytes(8, "little") + text


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        if len(document) != len(pairs):
            twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise CheckpointError(f"{path}: {twice} is twice in the header", _COPY_AGAIN)
        return document

    try:
        document = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is not JSON: {error}", _COPY_AGAIN) from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path}: the header is not a JSON object", _COPY_AGAIN)
    return document


def _stored_tensor(path: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [start, stop]} if are_counts(
            shape
        ) and are_counts((start, stop)):
            pass
        case _:
            raise CheckpointError(
                f"{path}: tensor {name} has the header {entry!r:.200}, dtype, shape and data_offsets were wanted",
                _COPY_AGAIN,
            )
    if dtype not in ITEM_BITS:
        raise CheckpointError(f"{path}: tensor {name} has the unknown dtype {dtype!r}", _COPY_AGAIN)
    num_bytes = -(-prod(shape) * ITEM_BITS[dtype] // 8)
    if stop - start != num_bytes:
        raise CheckpointError(
            f"{path}: tensor {name} has bytes {start} to {stop}, {dtype}{shape} takes {num_bytes}", _COPY_AGAIN
        )
    return StoredTensor(name, dtype, tuple(shape), data_start + start, num_bytes)
