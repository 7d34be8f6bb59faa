"""The panel layout of weights: the order in which a kernel streams them, for one row and for many.

A [out, in] matrix is stored as all inputs of 32 outputs, then of the next 32. A kernel keeps one accumulator per output
and adds its inputs in one order, so an output's sum does not depend on how many rows it is computed with. Outputs are
padded to 32 with zeros.

In float32 a panel is [in, 32]. In bfloat16 it is [in / 2, 32, 2]: a 32-bit word has two inputs of an output, as the dot
products of bfloat16 take them; on a CPU without them a shift and a mask make a register of consecutive outputs of each.

In int8 a panel is a sequence of groups of 64 inputs: the 32 outputs' scales in bfloat16, then the integers [64, 32].
The last group has the inputs that are left. Both pad an odd number of inputs with one of zeros: a pair is taken whole.
"""

from __future__ import annotations

import numpy as np

from trivet.base.dtypes import GROUP, Array, DType, integers_and_scales, row_bytes
from trivet.operators.contract import Call

PANEL_OUTPUTS = 32
_SCALES_BYTES = 2 * PANEL_OUTPUTS
_GROUP_BYTES = _SCALES_BYTES + GROUP * PANEL_OUTPUTS


def panels_shape(outputs: int, inputs: int, dtype: DType) -> tuple[int, ...]:
    """The shape of a matrix in panels, in elements of its storage."""
    num_panels, num_pairs = -(-outputs // PANEL_OUTPUTS), -(-inputs // 2)
    if dtype == "int8":
        return num_panels, PANEL_OUTPUTS * row_bytes(2 * num_pairs, dtype)
    if dtype == "bfloat16":
        return num_panels, num_pairs, PANEL_OUTPUTS, 2
    return num_panels, inputs, PANEL_OUTPUTS


def pack_panels(matrix: Array) -> Array:
    """Rows in the storage of float32, bfloat16 (uint16) or int8 (uint8) → panels, of `panels_shape`, contiguous.

    A stack of matrices [experts, rows, row] becomes a stack of panels.
    """
    if matrix.ndim == 3:
        return np.stack([pack_panels(each) for each in matrix])
    if matrix.dtype == np.uint8:
        return _pack_groups(*integers_and_scales(matrix))
    if matrix.dtype == np.uint16:
        rows = _padded(matrix, PANEL_OUTPUTS, 2)
        pairs = rows.reshape(-1, PANEL_OUTPUTS, rows.shape[1] // 2, 2)
        return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3))
    rows = _padded(matrix, PANEL_OUTPUTS, 1)
    return np.ascontiguousarray(rows.reshape(-1, PANEL_OUTPUTS, rows.shape[1]).transpose(0, 2, 1))


def unpack_panels(panels: Array, outputs: int, inputs: int) -> Array:
    """The inverse of `pack_panels`: rows of so many inputs, contiguous."""
    if panels.dtype == np.uint8:
        return _unpack_groups(panels, outputs, inputs)
    by_output = panels.transpose(0, 2, 1, 3) if panels.dtype == np.uint16 else panels.transpose(0, 2, 1)
    return np.ascontiguousarray(by_output.reshape(len(panels) * PANEL_OUTPUTS, -1)[:outputs, :inputs])


def refuse_rows(call: Call) -> str | None:
    """Why the CPU's kernels cannot stream the weight of this call, its second input; None where it is packed."""
    weight = call.inputs[1]
    assert weight is not None
    if weight.layout != "panels":
        return f"weight lies in {weight.layout}; the kernel streams panels (pass lay_out)"
    return None


def _padded(matrix: Array, rows: int, columns: int) -> Array:
    """The matrix with zeros below and to the right, up to multiples of `rows` and `columns`."""
    missing = -matrix.shape[0] % rows, -matrix.shape[1] % columns
    return np.pad(matrix, ((0, missing[0]), (0, missing[1]))) if any(missing) else matrix


def _pack_groups(integers: Array, scales: Array) -> Array:
    num_bytes = PANEL_OUTPUTS * row_bytes(integers.shape[1] + integers.shape[1] % 2, "int8")
    whole = _padded(integers.view(np.uint8), PANEL_OUTPUTS, GROUP)
    scales = _padded(scales, PANEL_OUTPUTS, 1)
    num_panels, num_groups = len(whole) // PANEL_OUTPUTS, scales.shape[1]
    groups = np.empty((num_panels, num_groups, _GROUP_BYTES), np.uint8)
    of_outputs = scales.reshape(num_panels, PANEL_OUTPUTS, num_groups).transpose(0, 2, 1)
    groups[..., :_SCALES_BYTES] = np.ascontiguousarray(of_outputs).view(np.uint8)
    by_group = whole.reshape(num_panels, PANEL_OUTPUTS, num_groups, GROUP).transpose(0, 2, 3, 1)
    groups[..., _SCALES_BYTES:] = by_group.reshape(num_panels, num_groups, -1)
    return np.ascontiguousarray(groups.reshape(num_panels, -1)[:, :num_bytes])


def _unpack_groups(panels: Array, outputs: int, inputs: int) -> Array:
    num_panels, panel_bytes = panels.shape
    num_groups = -(-inputs // GROUP)
    whole = np.zeros((num_panels, num_groups * _GROUP_BYTES), np.uint8)
    whole[:, :panel_bytes] = panels
    groups = whole.reshape(num_panels, num_groups, _GROUP_BYTES)
    scales = np.ascontiguousarray(groups[..., :_SCALES_BYTES]).view(np.uint16).transpose(0, 2, 1)
    by_group = groups[..., _SCALES_BYTES:].reshape(num_panels, num_groups, GROUP, PANEL_OUTPUTS)
    integers = by_group.transpose(0, 3, 1, 2).reshape(num_panels * PANEL_OUTPUTS, -1)[:outputs, :inputs]
    of_rows = np.ascontiguousarray(scales.reshape(-1, num_groups)[:outputs]).view(np.uint8)
    return np.concatenate([integers, of_rows], axis=1)
