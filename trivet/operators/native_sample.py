"""A contract's sample on the CPU's kernels: every buffer is fenced, and starts as NaN where it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from trivet._native import Program, Team
from trivet.base.dtypes import Array, storage
from trivet.base.units import align_up
from trivet.operators.contract import Implementation, Operator, Sample, TensorSpec, choose, resolve
from trivet.operators.cpu import KernelCall, Operand, append
from trivet.operators.kv_layout import pack_kv, unpack_kv
from trivet.operators.panels import pack_panels
from trivet.operators.verify import Run

_GUARD_BYTES = 64
_GUARD = 0xA5


def on_cpu(team: Team, target: str | None = None) -> Run:
    """Runs samples on one kernel target, the best of this CPU if None."""
    return lambda operator, sample: run_sample(operator, sample, team, target)


def run_sample(operator: Operator, sample: Sample, team: Team, target: str | None = None) -> list[Array]:
    """The outputs of the CPU's implementation, in logical shape and storage format. Raises AssertionError when a
    fence was written over."""
    implementation = choose(sample.call, "cpu")
    assert isinstance(implementation, Implementation), f"{operator.name} is refused: {implementation}"
    lowered = implementation.lower(sample.call, sample.sizes)
    assert isinstance(lowered, KernelCall)
    buffers = dict(_buffers(operator, sample))
    program = Program(target)
    append(program, lowered, {name: buffer.operand for name, buffer in buffers.items()})
    sizes = sample.sizes
    program.run(team, sizes.get("tokens", 0), sizes.get("sequences", 0), sizes.get("rows", 0))
    for name, buffer in buffers.items():
        assert buffer.is_intact(), f"{operator.name} wrote outside {name}"
    names = [argument.name for argument in operator.outputs][: len(sample.call.outputs)]
    return [buffers[operator.updates.get(name, name)].logical(sizes) for name in names]


class _Buffer:
    """An array in its device layout between two fences; rows start at multiples of 64 bytes, fences between them."""

    def __init__(self, spec: TensorSpec, stored: Array) -> None:
        self._spec = spec
        rows = stored.reshape(stored.shape[0], -1)
        row_bytes = rows.shape[1] * rows.dtype.itemsize
        # One-axis arrays and packed weights are contiguous by contract; everything else may have a stride.
        is_strided = len(spec.axes) > 1 and spec.layout != "panels"
        self._stride = align_up(row_bytes + _GUARD_BYTES, 64) if is_strided else row_bytes
        self._shape, self._row_bytes = stored.shape, row_bytes
        size = self._stride * rows.shape[0] + 2 * _GUARD_BYTES
        whole = np.full(size + 64, _GUARD, np.uint8)
        start = -whole.ctypes.data % 64
        self._bytes = whole[start : start + size]
        self._dtype = rows.dtype
        self._rows()[:] = rows.view(np.uint8).reshape(rows.shape[0], row_bytes)

    @property
    def operand(self) -> Operand:
        assert self._spec.dtype is not None
        return self._bytes.ctypes.data + _GUARD_BYTES, self._stride, self._spec.dtype

    def is_intact(self) -> bool:
        covered = np.zeros(len(self._bytes), bool)
        strided = covered[_GUARD_BYTES : len(covered) - _GUARD_BYTES].reshape(-1, self._stride)
        strided[:, : self._row_bytes] = True
        return bool((self._bytes[~covered] == _GUARD).all())

    def logical(self, sizes: Mapping[str, int]) -> Array:
        stored = np.ascontiguousarray(self._rows()).view(self._dtype).reshape(self._shape)
        if self._spec.layout != "kv":
            return stored
        kv_heads, head_dim = (resolve(axis, sizes) for axis in self._spec.axes[3:])
        return unpack_kv(stored, sizes["slot_tokens"], kv_heads, head_dim)

    def _rows(self) -> Array:
        inner = self._bytes[_GUARD_BYTES : len(self._bytes) - _GUARD_BYTES].reshape(-1, self._stride)
        return inner[:, : self._row_bytes]


def _buffers(operator: Operator, sample: Sample) -> Iterator[tuple[str, _Buffer]]:
    for argument, spec, array in zip(operator.inputs, sample.call.inputs, sample.inputs, strict=True):
        if spec is not None and array is not None:
            yield argument.name, _Buffer(spec, _in_layout(spec, array))
    for argument, spec in zip(operator.outputs, sample.call.outputs, strict=False):
        if argument.name not in operator.updates:
            assert spec.dtype is not None
            shape = [resolve(axis, sample.sizes) for axis in spec.axes]
            poison = np.full(prod(shape) * storage(spec.dtype).itemsize, 0xFF, np.uint8)  # NaN in every float format
            yield argument.name, _Buffer(spec, poison.view(storage(spec.dtype)).reshape(shape))


def _in_layout(spec: TensorSpec, array: Array) -> Array:
    if spec.layout == "panels":
        return pack_panels(array)
    return pack_kv(array) if spec.layout == "kv" else array
