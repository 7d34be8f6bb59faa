"""What a cube core does with matrices: fetch rows into fractals in L1, multiply, put the product back as rows.

In L1 a matrix lies as fractals of 16 rows by 32 bytes, one column of fractals after the other; in L0C as fractals of 16
by 16. The product works its way through L0A and L0B as the device library's mma_tile does (AscendNPU-IR,
bishengir/lib/Template/lib/Cube/LocalMmad.cpp): the same pieces of k, the same flags, its own among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ascend.hivm.cores import L0_BYTES
from ascend.hivm.machine import Machine, Value, as_integer, as_view, unknown
from ascend.hivm.memory import View
from ascend.hivm.order import LIBRARY
from ascend.hivm.program import Operation
from trivet.base.dtypes import Array

_SIDE = 16  # of a fractal
_FRACTAL_BYTES = 32  # of one row of a fractal
_LIBRARY_EVENT = 7  # the event that the device library keeps to itself
# What each operation may be given, with the one value that is known where there is one.
_KNOWN: dict[str, dict[str, str | None]] = {
    "nd2nz": {"dst_continuous": "", "init_out_buffer": "false", "operandSegmentSizes": None},
    "mmadL1": {"b_transpose": "", "operandSegmentSizes": None},
    "fixpipe": {"dma_mode": "#hivm.dma_mode<nz2nd>", "operandSegmentSizes": None},
}
NAMES = frozenset(f"hivm.hir.{name}" for name in _KNOWN)


def run(operation: Operation, given: list[Value], machine: Machine) -> None:
    """One operation of the cube core. Raises HivmError for an attribute or operand that is not known."""
    name = operation.name.removeprefix("hivm.hir.")
    for key, value in operation.properties.items():
        if key not in _KNOWN[name] or _KNOWN[name][key] not in (None, value):
            raise unknown(operation, f"with {key} {value}".rstrip())
    groups, first = list[list[Value]](), 0
    for group in operation.segments():
        groups.append(given[first : first + len(group)])
        first += len(group)
    if name == "mmadL1":
        _multiply(operation, groups, machine)
    elif any(groups[2:]):
        raise unknown(operation, f"with {len(given)} operands")
    elif name == "nd2nz":
        _fetch(operation, as_view(given[0]), as_view(given[1]), machine)
    else:
        _put_back(operation, as_view(given[0]), as_view(given[1]), machine)


def _fetch(operation: Operation, rows: View, fractals: View, machine: Machine) -> None:
    """Rows of global memory into L1. The last fractal of a row is filled up with zeros; rows that are not there keep
    what lies in L1."""
    num_rows, width = rows.shape
    columns, _, side, inner = fractals.shape
    over_columns, over_fractals, over_rows, _ = fractals.strides
    used = -(-width // inner)
    assert side == _SIDE and used <= columns and over_fractals == side * over_rows, (operation, fractals)
    target = fractals.moved(fractals.offset, (used, num_rows, inner), (over_columns, over_rows, 1))
    machine.access(operation, "PIPE_MTE2", (rows,), (target,))
    padded = np.zeros((num_rows, used * inner), np.float32)
    padded[:, :width] = rows.read()
    target.write(padded.reshape(num_rows, used, inner).swapaxes(0, 1))


def _put_back(operation: Operation, fractals: View, rows: View, machine: Machine) -> None:
    """A product in L0C to rows of global memory."""
    num_rows, width = rows.shape
    used = fractals.moved(fractals.offset, (-(-width // _SIDE), *fractals.shape[1:]), fractals.strides)
    machine.access(operation, "PIPE_FIX", (used,), (rows,))
    rows.write(_matrix(used)[:num_rows, :width])


@dataclass(frozen=True)
class _Product:
    """a [m, k] times b [k, n]. In L1 b lies as its transpose does where `is_transposed`."""

    a: View
    b: View
    is_transposed: bool
    k: int
    n: int
    c: View

    @property
    def item_bytes(self) -> int:
        return _FRACTAL_BYTES // self.a.shape[3]

    @property
    def rows(self) -> int:
        """Of c, and so of a: whole fractals, whether all of their rows are wanted or not."""
        return self.c.shape[1] * self.c.shape[2]

    @property
    def columns(self) -> int:
        return -(-self.n // _SIDE) * _SIDE

    def pieces(self) -> tuple[int, bool]:
        """How much of k is in L0A and L0B at once, and whether two such pieces fit side by side."""
        b_columns = self.b.shape[1] * self.b.shape[2] if self.is_transposed else self.b.shape[0] * self.b.shape[3]
        widest = -(-max(self.a.shape[1] * self.a.shape[2], b_columns) // _SIDE) * _SIDE
        for is_doubled in (True, False):
            piece = L0_BYTES // (2 if is_doubled else 1) // self.item_bytes // widest // _SIDE * _SIDE
            if piece > 0:
                return piece, is_doubled
        raise AssertionError(f"not even {_SIDE} of k fit in L0 beside {widest} rows or columns")

    def left(self, first: int, end: int) -> View:
        """Columns of a in L1, whole fractals."""
        inner = self.a.shape[3]
        return _span(self.a, 0, first // inner, -(-end // inner))

    def right(self, first: int, end: int) -> View:
        """Rows of b in L1, whole fractals; as many of its columns as are wanted."""
        inner = self.b.shape[3]
        if self.is_transposed:
            return _span(_span(self.b, 0, first // inner, -(-end // inner)), 1, 0, self.columns // _SIDE)
        return _span(_span(self.b, 1, first // _SIDE, -(-end // _SIDE)), 0, 0, -(-self.n // inner))

    def values(self) -> Array:
        right = _matrix(self.b).T if self.is_transposed else _matrix(self.b)
        with np.errstate(all="ignore"):
            made: Array = _matrix(self.a)[: self.rows, : self.k] @ right[: self.k, : self.columns]
        return made


def _multiply(operation: Operation, groups: list[list[Value]], machine: Machine) -> None:
    (a,), (b,), (is_first,), (_,), (k,), (n,), (c,), events, unit_flag, bias = groups
    waits, sets, (order, *backward) = events[:2], events[2:4], (as_integer(event) for event in events[4:])
    if unit_flag or bias or list(backward) != [-1, -1]:
        raise unknown(operation, f"with {len(unit_flag)} unit flags, {len(bias)} bias, backward events {backward}")
    product = _Product(
        as_view(a), as_view(b), "b_transpose" in operation.properties, as_integer(k), as_integer(n), as_view(c)
    )
    held = product.a.shape[1] * product.a.shape[2]
    assert held >= product.rows, f"line {operation.line}: {product.rows} rows are multiplied, a in L1 has {held}"
    _through_l0(operation, product, bool(is_first), order, [*map(as_integer, waits), *map(as_integer, sets)], machine)
    target = _span(product.c, 0, 0, product.columns // _SIDE)
    before = 0.0 if is_first else _matrix(target)
    made = before + product.values()
    target.write(made.reshape(*target.shape[1:3], target.shape[0], _SIDE).transpose(2, 0, 1, 3))


def _through_l0(
    operation: Operation, product: _Product, is_first: bool, order: int, events: list[int], machine: Machine
) -> None:
    """What the product gives to the pipes. `order` counts products, for L0's halves to take turns over them all;
    `events` are the schedule's: a is there, b is there, a may go, b may go."""
    piece, is_doubled = product.pieces()
    num_pieces = -(-product.k // piece)
    halves = [0, 1]
    written = _span(product.c, 0, 0, product.columns // _SIDE)

    def given(i: int, part: str) -> None:
        if events[i] >= 0:
            pipes = ("PIPE_MTE2", "PIPE_MTE1") if i < 2 else ("PIPE_MTE1", "PIPE_MTE2")
            (machine.wait_flag if i < 2 else machine.set_flag)(operation, *pipes, events[i], part)

    for event in halves:
        machine.set_flag(operation, "PIPE_M", "PIPE_MTE1", event, LIBRARY)
    for number in range(num_pieces):
        first, end = number * piece, min(product.k, (number + 1) * piece)
        half = (max(order, 0) * num_pieces + number) % 2 if is_doubled else 0
        used = [half] if is_doubled else halves
        for event in used:
            machine.wait_flag(operation, "PIPE_M", "PIPE_MTE1", event, LIBRARY)
        loaded = list[View]()
        for i, (memory, part) in enumerate((("L0A", product.left(first, end)), ("L0B", product.right(first, end)))):
            if number == 0:
                given(i, f"wait for {'ab'[i]}")
            held = _in_l0(machine, memory, half, part)
            machine.access(operation, "PIPE_MTE1", (part,), (held,))
            loaded.append(held)
            if number == num_pieces - 1:
                given(2 + i, f"release of {'ab'[i]}")
        machine.set_flag(operation, "PIPE_MTE1", "PIPE_M", _LIBRARY_EVENT, LIBRARY)
        machine.wait_flag(operation, "PIPE_MTE1", "PIPE_M", _LIBRARY_EVENT, LIBRARY)
        added_to = () if is_first and number == 0 else (written,)
        machine.access(operation, "PIPE_M", (*loaded, *added_to), (written,))
        machine.barrier(operation, "PIPE_M", LIBRARY)  # from ten fractals on the cube keeps this order without one
        for event in used:
            machine.set_flag(operation, "PIPE_M", "PIPE_MTE1", event, LIBRARY)
    for event in halves:
        machine.wait_flag(operation, "PIPE_M", "PIPE_MTE1", event, LIBRARY)


def _in_l0(machine: Machine, memory: str, half: int, part: View) -> View:
    """Where a piece lies: its fractals one after the other, in one half of L0A or L0B."""
    name = machine.core.memory(memory)
    return View(name, machine.memories[name], part.element, half * L0_BYTES // 2, 0, (part.size,), (1,))


def _span(fractals: View, axis: int, first: int, end: int) -> View:
    """Fractals `first` to `end` along an axis of a matrix in L1 or L0C."""
    shape = tuple(end - first if i == axis else size for i, size in enumerate(fractals.shape))
    assert 0 <= first <= end <= fractals.shape[axis], (fractals, axis, first, end)
    return fractals.moved(fractals.offset + first * fractals.strides[axis], shape, fractals.strides)


def _matrix(fractals: View) -> Array:
    """The numbers as rows and columns."""
    across, down, rows, columns = fractals.shape
    made: Array = fractals.read().transpose(1, 2, 0, 3).reshape(down * rows, across * columns)
    return made.astype(np.float32)
