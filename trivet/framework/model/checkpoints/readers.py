"""Which reader opens what: the table of checkpoint formats, and the refusals of what is none of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trivet.base.errors import CheckpointError
from trivet.framework.model.checkpoints.checkpoint import Checkpoint
from trivet.framework.model.checkpoints.digest import check_exists
from trivet.framework.model.checkpoints.folder import FileFormat, read_folder
from trivet.framework.model.checkpoints.gguf import read_gguf
from trivet.framework.model.checkpoints.safetensors_header import read_header
from trivet.framework.model.checkpoints.torch_zip import SUFFIXES, read_torch_header

SAFETENSORS = FileFormat(
    "safetensors", (".safetensors",), "model.safetensors", "model.safetensors.index.json", read_header
)
TORCH = FileFormat("PyTorch", SUFFIXES, "pytorch_model.bin", "pytorch_model.bin.index.json", read_torch_header)

# A claim on a path, and the reader of what is there. Of a folder that has both, safetensors are read.
READERS: tuple[tuple[Callable[[Path], bool], Callable[[Path], Checkpoint]], ...] = (
    (lambda path: path.is_file() and path.suffix == ".gguf", read_gguf),
    (lambda path: path.is_dir() and any(path.glob("*.safetensors*")), lambda path: read_folder(path, SAFETENSORS)),
    (lambda path: _has_torch_files(path), lambda path: read_folder(path, TORCH)),
)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint at a local path: a folder with config.json and safetensors or PyTorch's files, or a GGUF file.

    Only headers are read. Raises CheckpointError with what is there instead and what to do about it.
    """
    path = Path(path)
    check_exists(path)
    for claims, read in READERS:
        if claims(path):
            return read(path)
    raise _refusal(path)


def _has_torch_files(path: Path) -> bool:
    return path.is_dir() and any(file.suffix in TORCH.suffixes or file.name == TORCH.index for file in path.iterdir())


def _refusal(path: Path) -> CheckpointError:
    if path.suffix in (*SAFETENSORS.suffixes, *TORCH.suffixes):
        return CheckpointError(f"{path} is one file of a checkpoint", f"give its folder: {path.parent}")
    if path.is_file():
        return CheckpointError(f"{path} is not a model", "give a folder with safetensors, a GGUF file or a package")
    ggufs = [file for file in sorted(path.iterdir()) if file.suffix == ".gguf"]
    if ggufs:
        return CheckpointError(f"{path} holds GGUF files", f"give the file itself: {ggufs[0]}")
    has_config = (path / "config.json").exists()
    return CheckpointError(
        f"{path} has neither safetensors, PyTorch's .bin nor a GGUF file",
        "copy the weights beside its config.json" if has_config else "give the folder that holds config.json",
    )
