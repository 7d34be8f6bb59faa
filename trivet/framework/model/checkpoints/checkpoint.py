"""A checkpoint: a model as published, its tensors under their published names and readable by rows.

Readers of the file formats make it; nothing here knows a format. Tensors stay on disk until rows are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trivet.base.dtypes import Array, DType
from trivet.base.errors import CheckpointError
from trivet.framework.graph.recipe import ReadRows
from trivet.framework.model.tokenizer_files import TokenizerFiles


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a checkpoint. `dtype` is what its rows are read as; None when they cannot be read here."""

    name: str
    dtype: DType | None
    shape: tuple[int, ...]
    stored: str  # the format in the file, in the file's own spelling: F16, Q4_1


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    config: dict[str, Any]  # in the form of a published config.json
    tokenizer: TokenizerFiles
    tensors: Mapping[str, TensorEntry]
    files: tuple[Path, ...]  # those the tensors lie in
    read_rows: ReadRows  # CheckpointError when the tensor is absent or in a format that is not read here

    @property
    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)


def read_bytes(path: Path, offset: int, count: int) -> Array:
    """`count` bytes of the file. Read, not mapped: pages of a mapped file would count as this process's memory."""
    block = np.fromfile(path, dtype=np.uint8, count=count, offset=offset)
    if block.size != count:
        raise CheckpointError(f"{path} ended while it was read: {count} bytes at {offset} wanted, {block.size} there")
    return block
