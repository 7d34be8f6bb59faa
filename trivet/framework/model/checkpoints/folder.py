"""Checkpoints in folders: config.json beside one file of tensors, or shards and their index, whatever their format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trivet.base.dtypes import Array, DType
from trivet.base.errors import CheckpointError
from trivet.framework.model.checkpoints.block_scales import dequantised
from trivet.framework.model.checkpoints.checkpoint import Checkpoint
from trivet.framework.model.checkpoints.stored import StoredTensor, entry, read_stored_rows
from trivet.framework.model.json_file import read_json
from trivet.framework.model.tokenizer_files import read_tokenizer_files


@dataclass(frozen=True)
class FileFormat:
    """How a format's files are called in a folder, and how the tensors in one are found."""

    name: str
    suffixes: tuple[str, ...]
    single: str  # the file that is a whole model
    index: str  # which says in what shard each tensor is
    read_header: Callable[[Path], Sequence[StoredTensor]]


def read_folder(folder: Path, format: FileFormat) -> Checkpoint:
    """The checkpoint in a folder with config.json and files of `format`.

    Raises CheckpointError for a missing or lying file, an index that points outside, a tensor in two shards.
    """
    config = read_json(folder / "config.json")
    files, index = files_of(folder, format)
    stored: dict[str, tuple[Path, StoredTensor]] = {}
    for file in files:
        for tensor in format.read_header(file):
            if tensor.name in stored:
                other = stored[tensor.name][0].name
                raise CheckpointError(f"{folder}: tensor {tensor.name} is in {other} and again in {file.name}")
            stored[tensor.name] = (file, tensor)
    for name, shard in index.items():
        if name not in stored or stored[name][0] != folder / shard:
            raise CheckpointError(f"{folder / format.index} says that {name} is in {shard}, which does not have it")

    def read_rows(name: str, start: int, stop: int) -> tuple[Array, DType]:
        if name not in stored:
            raise CheckpointError(f"{folder}: tensor {name} is not in the checkpoint")
        return read_stored_rows(*stored[name], start, stop)

    return dequantised(
        Checkpoint(
            path=folder,
            config=config,
            tokenizer=read_tokenizer_files(folder, config),
            tensors={name: entry(tensor) for name, (_, tensor) in stored.items()},
            files=files,
            read_rows=read_rows,
        )
    )


def files_of(folder: Path, format: FileFormat) -> tuple[tuple[Path, ...], dict[str, str]]:
    """The files that make up the model, and which tensor the index, if any, says is in which.

    Raises CheckpointError as `read_folder` does for its files.
    """
    single = folder / format.single
    if single.is_file():
        return (_inside(folder, single),), {}
    if (folder / format.index).is_file():
        index = _index(folder, folder / format.index)
        return tuple(_inside(folder, folder / shard) for shard in sorted(set(index.values()))), index
    files = sorted(file for file in folder.iterdir() if file.suffix in format.suffixes)
    if len(files) != 1:
        raise CheckpointError(
            f"{folder} has {len(files)} {format.name} files and no {format.index} that says how they belong together",
            f"copy {format.index} from the checkpoint's publisher",
        )
    return (_inside(folder, files[0]),), {}


def _index(folder: Path, path: Path) -> dict[str, str]:
    weight_map: Any = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(s, str) for s in weight_map.values()):
        raise CheckpointError(f"{path} has no weight_map from tensor names to shards")
    for shard in set(weight_map.values()):
        relative = PurePosixPath(shard)
        if relative.is_absolute() or ".." in relative.parts:
            raise CheckpointError(f"{path} names the shard {shard!r}, a file inside the folder was wanted")
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
