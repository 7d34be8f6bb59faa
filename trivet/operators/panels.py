"""The panel layout of weights: the order in which a kernel streams them, for one row and for many.

A [out, in] matrix is stored as [out / 32, in, 32]: all inputs of 32 outputs, then the next 32. A kernel keeps one
accumulator per output and adds its inputs in order, so an output's sum does not depend on how many rows it is
computed with. Outputs are padded to 32 with zeros.

In bfloat16 the 32 outputs of one input lie as 16 pairs (i, i + 16): a 32-bit word holds both, and a shift and a mask
turn a register of words into two registers of consecutive outputs, with no permutation. In float32 they lie in order.

In int8 a panel is a sequence of groups of 64 inputs: the 32 outputs' scales as bfloat16 pairs, then the integers
[64, 32] with outputs in order. The last group has the inputs that are left: a panel takes no more than its rows.
"""

from __future__ import annotations

import numpy as np

from trivet.base.dtypes import GROUP, Array, DType, integers_and_scales, row_bytes
from trivet.operators.contract import Call

PANEL_OUTPUTS = 32
_PAIR_ORDER = np.arange(PANEL_OUTPUTS).reshape(2, PANEL_OUTPUTS // 2).T.reshape(-1)  # 0, 16, 1, 17, …
_OUTPUT_ORDER = np.argsort(_PAIR_ORDER)
_SCALES_BYTES = 2 * PANEL_OUTPUTS
_GROUP_BYTES = _SCALES_BYTES + GROUP * PANEL_OUTPUTS


def panels_shape(outputs: int, inputs: int, dtype: DType) -> tuple[int, ...]:
    """The shape of a matrix in panels, in elements of its storage."""
    num_panels = -(-outputs // PANEL_OUTPUTS)
    if dtype == "int8":
        return num_panels, PANEL_OUTPUTS * row_bytes(inputs, dtype)
    return num_panels, inputs, PANEL_OUTPUTS


def pack_panels(matrix: Array) -> Array:
    """Rows in the storage of float32, bfloat16 (uint16) or int8 (uint8) → panels, of `panels_shape`, contiguous.

    A stack of matrices [experts, rows, row] becomes a stack of panels.
    """
    if matrix.ndim == 3:
        return np.stack([pack_panels(each) for each in matrix])
    outputs, row = matrix.shape
    num_panels = -(-outputs // PANEL_OUTPUTS)
    padded = matrix
    if outputs % PANEL_OUTPUTS:
        padded = np.zeros((num_panels * PANEL_OUTPUTS, row), matrix.dtype)
        padded[:outputs] = matrix
    if matrix.dtype == np.uint8:
        return _pack_groups(padded)
    panels = padded.reshape(num_panels, PANEL_OUTPUTS, row)
    if matrix.dtype == np.uint16:
        panels = panels[:, _PAIR_ORDER]
    return np.ascontiguousarray(panels.transpose(0, 2, 1))


def unpack_panels(panels: Array, outputs: int) -> Array:
    """The inverse of `pack_panels`: rows, contiguous."""
    if panels.dtype == np.uint8:
        return _unpack_groups(panels)[:outputs]
    num_panels, inputs, _ = panels.shape
    rows = panels.transpose(0, 2, 1)
    if panels.dtype == np.uint16:
        rows = rows[:, _OUTPUT_ORDER]
    return np.ascontiguousarray(rows.reshape(num_panels * PANEL_OUTPUTS, inputs)[:outputs])


def refuse_rows(call: Call) -> str | None:
    """Why the CPU's kernels cannot stream the weight of this call, its second input; None where it is packed."""
    weight = call.inputs[1]
    assert weight is not None
    if weight.layout != "panels":
        return f"weight lies in {weight.layout}; the kernel streams panels (pass lay_out)"
    return None


def _pack_groups(rows: Array) -> Array:
    integers, scales = integers_and_scales(rows)
    num_panels, num_groups = len(rows) // PANEL_OUTPUTS, scales.shape[1]
    groups = np.zeros((num_panels, num_groups, _GROUP_BYTES), np.uint8)
    in_pairs = scales.reshape(num_panels, PANEL_OUTPUTS, num_groups)[:, _PAIR_ORDER].transpose(0, 2, 1)
    groups[..., :_SCALES_BYTES] = np.ascontiguousarray(in_pairs).view(np.uint8)
    whole = np.zeros((len(rows), num_groups * GROUP), np.uint8)
    whole[:, : integers.shape[1]] = integers.view(np.uint8)
    by_group = whole.reshape(num_panels, PANEL_OUTPUTS, num_groups, GROUP).transpose(0, 2, 3, 1)
    groups[..., _SCALES_BYTES:] = by_group.reshape(num_panels, num_groups, -1)
    return np.ascontiguousarray(groups.reshape(num_panels, -1)[:, : PANEL_OUTPUTS * rows.shape[1]])


def _unpack_groups(panels: Array) -> Array:
    num_panels, panel_bytes = panels.shape
    num_groups = -(-panel_bytes // _GROUP_BYTES)
    width = panel_bytes // PANEL_OUTPUTS - 2 * num_groups
    whole = np.zeros((num_panels, num_groups * _GROUP_BYTES), np.uint8)
    whole[:, :panel_bytes] = panels
    groups = whole.reshape(num_panels, num_groups, _GROUP_BYTES)
    in_pairs = np.ascontiguousarray(groups[..., :_SCALES_BYTES]).view(np.uint16)
    scales = in_pairs[..., _OUTPUT_ORDER].transpose(0, 2, 1).reshape(-1, num_groups)
    by_group = groups[..., _SCALES_BYTES:].reshape(num_panels, num_groups, GROUP, PANEL_OUTPUTS)
    integers = by_group.transpose(0, 3, 1, 2).reshape(num_panels * PANEL_OUTPUTS, -1)[:, :width]
    return np.concatenate([integers, np.ascontiguousarray(scales).view(np.uint8)], axis=1)
