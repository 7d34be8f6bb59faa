"""Checkpoints in folders: config.json beside one safetensors file, or shards and their index."""

from __future__ import annotations

from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from trivet.base.dtypes import Array, DType
from trivet.base.errors import CheckpointError
from trivet.framework.model.checkpoints.checkpoint import Checkpoint, TensorEntry, read_bytes
from trivet.framework.model.checkpoints.safetensors_header import StoredTensor, read_header
from trivet.framework.model.json_file import read_json
from trivet.framework.model.tokenizer_files import read_tokenizer_files

INDEX = "model.safetensors.index.json"

_READ_AS: dict[str, DType] = {"F32": "float32", "F16": "float32", "BF16": "bfloat16"}
_STORAGE: dict[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def read_folder(folder: Path) -> Checkpoint:
    """The checkpoint in a folder with config.json and *.safetensors.

    Raises CheckpointError for a missing or lying file, an index that points outside, a tensor in two shards.
    """
    config = read_json(folder / "config.json")
    files, index = _files(folder)
    stored: dict[str, tuple[Path, StoredTensor]] = {}
    for file in files:
        for tensor in read_header(file):
            if tensor.name in stored:
                other = stored[tensor.name][0].name
                raise CheckpointError(f"{folder}: tensor {tensor.name} is in {other} and again in {file.name}")
            stored[tensor.name] = (file, tensor)
    for name, shard in index.items():
        if name not in stored or stored[name][0] != folder / shard:
            raise CheckpointError(f"{folder / INDEX} says that {name} is in {shard}, which does not have it")

    def read_rows(name: str, start: int, stop: int) -> tuple[Array, DType]:
        if name not in stored:
            raise CheckpointError(f"{folder}: tensor {name} is not in the checkpoint")
        return _read_rows(*stored[name], start, stop)

    return Checkpoint(
        path=folder,
        config=config,
        tokenizer=read_tokenizer_files(folder, config),
        tensors={name: _entry(tensor) for name, (_, tensor) in stored.items()},
        files=files,
        read_rows=read_rows,
    )


def _files(folder: Path) -> tuple[tuple[Path, ...], dict[str, str]]:
    """The safetensors files that make up the model, and which tensor the index, if any, says is in which."""
    single = folder / "model.safetensors"
    if single.is_file():
        return (_inside(folder, single),), {}
    if (folder / INDEX).is_file():
        index = _index(folder)
        return tuple(_inside(folder, folder / shard) for shard in sorted(set(index.values()))), index
    files = sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        raise CheckpointError(
            f"{folder} has {len(files)} safetensors files and no {INDEX} that says how they belong together",
            f"copy {INDEX} from the checkpoint's publisher",
        )
    return (_inside(folder, files[0]),), {}


def _index(folder: Path) -> dict[str, str]:
    weight_map: Any = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(s, str) for s in weight_map.values()):
        raise CheckpointError(f"{folder / INDEX} has no weight_map from tensor names to shards")
    for shard in set(weight_map.values()):
        path = PurePosixPath(shard)
        if path.is_absolute() or ".." in path.parts:
            raise CheckpointError(f"{folder / INDEX} names the shard {shard!r}, a file inside the folder was wanted")
    missing = sorted(shard for shard in set(weight_map.values()) if not (folder / shard).is_file())
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(set(weight_map.values()))} shards are missing: {', '.join(missing[:5])}",
            "copy the missing files from the checkpoint's publisher",
        )
    return weight_map


def _inside(folder: Path, file: Path) -> Path:
    """`file`, refused if it is a link that leaves the checkpoint.

    A snapshot in the Hugging Face cache consists of links into `blobs`, two levels up; those belong to it.
    """
    target, home = file.resolve(), folder.resolve()
    is_blob = home.parent.name == "snapshots" and target.is_relative_to(home.parent.parent / "blobs")
    if not target.is_relative_to(home) and not is_blob:
        raise CheckpointError(f"{file} is a link to {target}, outside the checkpoint", "put the file itself there")
    return file


def _entry(tensor: StoredTensor) -> TensorEntry:
    return TensorEntry(tensor.name, _READ_AS.get(tensor.dtype), tensor.shape, tensor.dtype)


def _read_rows(file: Path, tensor: StoredTensor, start: int, stop: int) -> tuple[Array, DType]:
    dtype = _READ_AS.get(tensor.dtype)
    if dtype is None:
        raise CheckpointError(
            f"{file}: tensor {tensor.name} is {tensor.dtype}, F32, F16 or BF16 was wanted",
            "use the checkpoint's unquantised version",
        )
    item = np.dtype(_STORAGE[tensor.dtype])
    width = prod(tensor.shape[1:])
    row_bytes = width * item.itemsize
    block = read_bytes(file, tensor.offset + start * row_bytes, (stop - start) * row_bytes)
    rows: Array = block.view(item).reshape(stop - start, *tensor.shape[1:])
    return (rows.astype(np.float32) if tensor.dtype == "F16" else rows), dtype
