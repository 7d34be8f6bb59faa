"""The panel layout of weights: the order in which a kernel streams them, for one row and for many.

A [out, in] matrix is stored as [out / 32, in, 32]: all inputs of 32 outputs, then the next 32. A kernel keeps one
accumulator per output and adds its inputs in order, so an output's sum does not depend on how many rows it is
computed with. Outputs are padded to 32 with zeros.

In bfloat16 the 32 outputs of one input lie as 16 pairs (i, i + 16): a 32-bit word holds both, and a shift and a mask
turn a register of words into two registers of consecutive outputs, with no permutation. In float32 they lie in order.
"""

from __future__ import annotations

import numpy as np

from trivet.base.dtypes import Array

PANEL_OUTPUTS = 32
_PAIR_ORDER = np.arange(PANEL_OUTPUTS).reshape(2, PANEL_OUTPUTS // 2).T.reshape(-1)  # 0, 16, 1, 17, …
_OUTPUT_ORDER = np.argsort(_PAIR_ORDER)


def pack_panels(matrix: Array) -> Array:
    """[out, in] in the storage of bfloat16 (uint16) or float32 → [ceil(out / 32), in, 32], contiguous.

    A stack of matrices [experts, out, in] becomes a stack of panels.
    """
    if matrix.ndim == 3:
        return np.stack([pack_panels(each) for each in matrix])
    outputs, inputs = matrix.shape
    num_panels = -(-outputs // PANEL_OUTPUTS)
    padded = matrix
    if outputs % PANEL_OUTPUTS:
        padded = np.zeros((num_panels * PANEL_OUTPUTS, inputs), matrix.dtype)
        padded[:outputs] = matrix
    panels = padded.reshape(num_panels, PANEL_OUTPUTS, inputs)
    if matrix.dtype == np.uint16:
        panels = panels[:, _PAIR_ORDER]
    return np.ascontiguousarray(panels.transpose(0, 2, 1))


def unpack_panels(panels: Array, outputs: int) -> Array:
    """The inverse of `pack_panels`: [out, in], contiguous."""
    num_panels, inputs, _ = panels.shape
    rows = panels.transpose(0, 2, 1)
    if panels.dtype == np.uint16:
        rows = rows[:, _OUTPUT_ORDER]
    return np.ascontiguousarray(rows.reshape(num_panels * PANEL_OUTPUTS, inputs)[:outputs])
