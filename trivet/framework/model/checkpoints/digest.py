"""Whether a model is at a path, its name, and which checkpoint: told without parsing it or reading all its weights."""

from __future__ import annotations

import os
import re
from pathlib import Path

import xxhash

from trivet.base.errors import CheckpointError
from trivet.base.units import MIB

_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json", ".jinja")
_GIVE = "give a folder with safetensors, a GGUF file or a package"
_HEAD_BYTES = MIB  # holds all of a config and the headers of most shards


def check_exists(path: Path) -> None:
    """Raises CheckpointError with what to do unless a file or a folder is at `path`."""
    name = str(path)
    try:
        if path.is_file() or path.is_dir():
            return
        is_something = path.exists()
    except OSError as error:  # a folder on the way may not be looked into, a name may be too long
        raise CheckpointError(
            f"{name} cannot be looked at: {error.strerror}", "check the path, and who may read it"
        ) from None
    if is_something:
        raise CheckpointError(f"{name} is neither a file nor a folder", _GIVE)
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        raise CheckpointError(
            f"{name} is not a local path, and models are not fetched from a hub",
            f"fetch it first: hf download {name} --local-dir {path.name}, then give {path.name}",
        )
    raise CheckpointError(f"{name} does not exist", _GIVE)


def model_name(path: Path) -> str:
    """The last part of `path` as it was given, without .gguf; of "." and "..", that of the folder they stand for.

    Links are not followed. A link is often there for its name, and what it leads to may have none that a person knows:
    in a hub's cache a GGUF file is a link to a blob named by its hash.
    """
    return Path(os.path.normpath(path.absolute())).name.removesuffix(".gguf")


def source_digest(path: Path) -> str:
    """XXH3-128 of name, size, time of change and first MiB of every file of the checkpoint.

    The same after the checkpoint is moved; another when any of its files is changed. A digest of all bytes would cost
    minutes at 140 GB, on every start.
    """
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    hasher = xxhash.xxh3_128()
    for file in files:
        stat = file.stat()
        hasher.update(b"" if path.is_file() else os.fsencode(file.name))
        hasher.update(f"\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        with file.open("rb") as opened:
            hasher.update(opened.read(_HEAD_BYTES))
    return hasher.hexdigest()
