"""Checkpoints in FP8 with a scale for each block, read as the numbers they stand for.

As DeepSeek-V3 publishes its weights and others do since: beside a matrix NAME of e4m3 lies NAME_scale_inv, and an
element is the product of its byte's value and the scale of its block, 128 × 128 in what is published. Facts:
README_WEIGHTS.md of https://huggingface.co/deepseek-ai/DeepSeek-V3, "FP8 Weight Documentation".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trivet.base.dtypes import Array, DType, cast
from trivet.base.errors import CheckpointError
from trivet.framework.model.checkpoints.checkpoint import Checkpoint, TensorEntry

_SUFFIX = "_scale_inv"


def dequantised(checkpoint: Checkpoint) -> Checkpoint:
    """`checkpoint` without its scales, every matrix that has them as float32; as it is where it is not of this kind.

    Raises CheckpointError for a scale of another shape than the blocks make, or a matrix of e4m3 without one.
    """
    block = _block_size(checkpoint.config.get("quantization_config"))
    if block is None:
        return checkpoint
    for entry in checkpoint.tensors.values():
        if entry.stored == "F8_E4M3":
            _check_scale(checkpoint, entry, block)
    scaled = {name for name, entry in checkpoint.tensors.items() if entry.stored == "F8_E4M3"}

    def read_rows(name: str, start: int, stop: int) -> tuple[Array, DType]:
        rows, dtype = checkpoint.read_rows(name, start, stop)
        if name not in scaled:
            return rows, dtype
        height, width = block
        first = start // height
        scales, scale_dtype = checkpoint.read_rows(name + _SUFFIX, first, -(-stop // height))
        of_row = cast(scales, scale_dtype, "float32")[np.arange(start, stop) // height - first]
        return rows * np.repeat(of_row, width, axis=1)[:, : rows.shape[1]], "float32"

    return replace(
        checkpoint,
        config={key: value for key, value in checkpoint.config.items() if key != "quantization_config"},
        tensors={
            name: entry
            for name, entry in checkpoint.tensors.items()
            if not (name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX) in scaled)
        },
        read_rows=read_rows,
    )


def _block_size(quantization: Any) -> tuple[int, int] | None:
    match quantization:
        case {"quant_method": "fp8", "weight_block_size": [int(height), int(width)]} if height > 0 and width > 0:
            return height, width
    return None


def _check_scale(checkpoint: Checkpoint, entry: TensorEntry, block: tuple[int, int]) -> None:
    scale = checkpoint.tensors.get(entry.name + _SUFFIX)
    wanted = tuple(-(-size // step) for size, step in zip(entry.shape, block, strict=False))
    if len(entry.shape) != 2 or scale is None or scale.dtype is None or scale.shape != wanted:
        found = "none" if scale is None else f"{scale.stored} {list(scale.shape)}"
        raise CheckpointError(
            f"{checkpoint.path}: tensor {entry.name} is F8_E4M3 {list(entry.shape)} with {found} for a scale, F32 "
            f"{list(wanted)} was wanted for blocks of {block[0]} × {block[1]}",
            "copy the checkpoint again; or use its unquantised version",
        )
