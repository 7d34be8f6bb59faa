"""Files of torch.save since PyTorch 1.6: a zip of one pickle and a record of bytes for each storage, read in place.

Nothing in them is run, and PyTorch is not needed; see torch_pickle. Older files, one pickle with bytes behind it, are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

from trivet.base.errors import CheckpointError
from trivet.base.units import MIB, format_bytes
from trivet.framework.model.checkpoints.checkpoint import read_bytes
from trivet.framework.model.checkpoints.stored import ITEM_BITS, StoredTensor, are_counts
from trivet.framework.model.checkpoints.torch_pickle import PickledTensor, UnsafePickle, load_pickle
from trivet.framework.model.checkpoints.zip_index import Member, is_zip, read_zip_index

SUFFIXES = (".bin", ".pt", ".pth")

_MAX_PICKLE_BYTES = 16 * MIB  # a hundred thousand tensors; a hostile one makes at most some hundred times as much of it
_WRAPPERS = ("state_dict", "model", "module")  # under which training scripts save the weights beside other things

_SAVE_AGAIN = "save its tensors alone: torch.save(model.state_dict(), FILE), or as safetensors"


def read_torch_header(path: Path) -> tuple[StoredTensor, ...]:
    """The tensors of the file's state dict, in its order.

    Raises CheckpointError when the file is not whole, its pickle does anything but make tensors and containers (naming
    what), or a tensor lies outside its record or not in rows.
    """
    if not is_zip(path):
        raise CheckpointError(
            f"{path} is no zip: a file of PyTorch before 1.6, or another kind of pickle",
            f"load it where it can be trusted, and {_SAVE_AGAIN}",
        )
    members = read_zip_index(path)
    folder, program = _program(path, members)
    order = members.get(f"{folder}byteorder")
    if order is not None and read_bytes(path, order.offset, min(order.num_bytes, 6)).tobytes() != b"little":
        raise CheckpointError(f"{path} holds big-endian numbers, little-endian ones are read here", _SAVE_AGAIN)
    try:
        root = load_pickle(program)
    except UnsafePickle as error:
        raise CheckpointError(f"{path}: its pickle is no state dict: {error}", _SAVE_AGAIN) from None
    return tuple(_stored(path, name, each, folder, members) for name, each in _state_dict(path, root).items())


def _program(path: Path, members: Mapping[str, Member]) -> tuple[str, bytes]:
    """The folder inside the zip, whose name is the file's, and the pickle in it."""
    found = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(found) != 1:
        raise CheckpointError(f"{path} has {len(found)} pickles named data.pkl, one was wanted", _SAVE_AGAIN)
    pickle = members[found[0]]
    if pickle.num_bytes > _MAX_PICKLE_BYTES:
        raise CheckpointError(
            f"{path}: its pickle is {format_bytes(pickle.num_bytes)}, {format_bytes(_MAX_PICKLE_BYTES)} is much",
            _SAVE_AGAIN,
        )
    program = read_bytes(path, pickle.offset, pickle.num_bytes).tobytes()
    return found[0].removesuffix("data.pkl"), program


def _state_dict(path: Path, root: Any) -> dict[str, PickledTensor]:
    """The tensors by name: of the pickle's dict, or of the one that a training script put the weights in."""
    for place in (root, *(root.get(key) for key in _WRAPPERS if isinstance(root, dict))):
        if isinstance(place, dict):
            tensors = {name: each for name, each in place.items() if isinstance(each, PickledTensor)}
            if tensors and all(isinstance(name, str) for name in tensors):
                return tensors
    raise CheckpointError(f"{path} holds no tensors by name", _SAVE_AGAIN)


def _stored(path: Path, name: str, tensor: PickledTensor, folder: str, members: Mapping[str, Member]) -> StoredTensor:
    """Where the tensor's bytes lie, once nothing of what the pickle says of it is taken on trust."""
    shape, strides, offset = tensor.shape, tensor.strides, tensor.offset
    if not _are_counts(shape) or not _are_counts(strides) or len(shape) != len(strides) or not _are_counts((offset,)):
        raise CheckpointError(f"{path}: tensor {name} has a shape, strides or an offset that are none", _SAVE_AGAIN)
    member = members.get(f"{folder}data/{tensor.storage.key}")
    if member is None:
        raise CheckpointError(f"{path}: tensor {name} is in the record {tensor.storage.key}, which is missing")
    item_bytes = ITEM_BITS[tensor.dtype] // 8
    start, num_bytes = offset * item_bytes, prod(shape) * item_bytes
    if start + num_bytes > member.num_bytes:
        raise CheckpointError(
            f"{path}: tensor {name} wants {num_bytes} bytes at {start} of its record, which has {member.num_bytes}",
            "the copy is incomplete or damaged: fetch the file again",
        )
    rows = [1, *accumulate(reversed(shape[1:]), lambda width, size: width * size)][::-1]
    # An axis of one element is never stepped along, and an empty tensor not at all.
    if prod(shape) and any(size > 1 and stride != row for size, stride, row in zip(shape, strides, rows, strict=False)):
        raise CheckpointError(
            f"{path}: tensor {name} {list(shape)} lies in strides {list(strides)}, row after row was wanted",
            "save it again after .contiguous()",
        )
    return StoredTensor(name, tensor.dtype, shape, member.offset + start, num_bytes)


def _are_counts(values: Any) -> bool:
    return isinstance(values, tuple) and are_counts(values)
