"""Which reader opens what: the table of checkpoint formats, and the refusals of what is none of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from trivet.base.errors import CheckpointError
from trivet.framework.model.checkpoints.checkpoint import Checkpoint
from trivet.framework.model.checkpoints.gguf import read_gguf
from trivet.framework.model.checkpoints.safetensors import read_folder

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")

# A claim on a path, and the reader of what is there
READERS: tuple[tuple[Callable[[Path], bool], Callable[[Path], Checkpoint]], ...] = (
    (lambda path: path.is_file() and path.suffix == ".gguf", read_gguf),
    (lambda path: path.is_dir() and any(path.glob("*.safetensors*")), read_folder),
)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint at a local path: a folder with config.json and safetensors, or a GGUF file.

    Only headers are read. Raises CheckpointError with what is there instead and what to do about it.
    """
    path = Path(path)
    check_exists(path)
    for claims, read in READERS:
        if claims(path):
            return read(path)
    raise _refusal(path)


def check_exists(path: Path) -> None:
    """Raises CheckpointError with what to do when nothing is at `path`."""
    if path.exists():
        return
    name = str(path)
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        raise CheckpointError(
            f"{name} is not a local path, and models are not fetched from a hub",
            f"fetch it first: hf download {name} --local-dir {path.name}, then give {path.name}",
        )
    raise CheckpointError(f"{name} does not exist", "give a folder with safetensors, a GGUF file or a package")


def _refusal(path: Path) -> CheckpointError:
    files = [path] if path.is_file() else sorted(path.iterdir())
    pickles = [file for file in files if file.suffix in _PICKLES]
    if pickles:
        target = pickles[0].parent / "model.safetensors"
        return CheckpointError(
            f"{pickles[0]} is a pickle, which runs code when it is loaded",
            "convert it safely to safetensors with: python -c 'import torch, safetensors.torch as s; "
            f's.save_file(torch.load("{pickles[0]}", weights_only=True), "{target}")\'',
        )
    if path.suffix == ".safetensors":
        return CheckpointError(f"{path} is one file of a checkpoint", f"give its folder: {path.parent}")
    if path.is_file():
        return CheckpointError(f"{path} is not a model", "give a folder with safetensors, a GGUF file or a package")
    ggufs = [file for file in files if file.suffix == ".gguf"]
    if ggufs:
        return CheckpointError(f"{path} holds GGUF files", f"give the file itself: {ggufs[0]}")
    return CheckpointError(f"{path} has neither safetensors nor a GGUF file", "give the folder that holds config.json")
