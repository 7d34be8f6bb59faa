"""The memref operations: views made of views, and single elements, which the scalar pipe reads and writes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from ascend.hivm.cores import SCALAR
from ascend.hivm.machine import Machine, Value, as_integer, as_view, unknown
from ascend.hivm.memory import View
from ascend.hivm.program import HivmError, Memory, Operation, memory

_SPACES = {"ub": "UB", "cbuf": "L1", "cc": "L0C"}  # the local memories that a program names addresses in


def refer(operation: Operation, given: list[Value], machine: Machine) -> list[Value]:
    """What a memref operation results in. Raises HivmError for one that is not known."""
    name = operation.name.removeprefix("memref.")
    if name == "load":
        place = _element(as_view(given[0]), given[1:])
        machine.access(operation, SCALAR, (place,), ())
        return [place.read().item()]
    if name == "store":
        place = _element(as_view(given[1]), given[2:])
        machine.access(operation, SCALAR, (), (place,))
        place.write(np.asarray(given[0]))
        return []
    if name not in _VIEWS:
        raise unknown(operation)
    return _VIEWS[name](operation, as_view(given[0]), given[1:])


def at_address(operation: Operation, given: list[Value], machine: Machine) -> View:
    """hivm.hir.pointer_cast: a view of a local memory of this core."""
    kind = memory(operation.result_types[0])
    own = machine.core.memory(_SPACES.get(kind.space, kind.space))
    if own not in machine.memories or len(given) != 1:
        raise unknown(operation, f"to {operation.result_types[0]} at {len(given)} addresses")
    shape, strides = _static(operation, kind.shape), _static(operation, kind.strides)
    return View(own, machine.memories[own], kind.element, as_integer(given[0]), 0, shape, strides)


def _metadata(operation: Operation, source: View, given: list[Value]) -> list[Value]:
    return [source.moved(0, (), ()), source.offset, *source.shape, *source.strides]


def _typed(operation: Operation, source: View, given: list[Value]) -> list[Value]:
    """memref.view: from a byte of raw memory on, dense elements of another type."""
    kind = memory(operation.result_types[0])
    shape, strides = _static(operation, kind.shape), _static(operation, kind.strides)
    (first,) = given
    assert source.offset == 0, source
    return [replace(source, base=source.base + as_integer(first), element=kind.element, shape=shape, strides=strides)]


def _cast(operation: Operation, source: View, given: list[Value]) -> list[Value]:
    """The same view under a type that says less, or more, of it."""
    kind = memory(operation.result_types[0])
    for said, real in ((kind.shape, source.shape), (kind.strides, source.strides)):
        assert all(size in (None, is_size) for size, is_size in zip(said, real, strict=True)), operation
    return [source]


def _expanded(operation: Operation, source: View, given: list[Value]) -> list[Value]:
    kind = memory(operation.result_types[0])
    return [source.moved(source.offset, _static(operation, kind.shape), _static(operation, kind.strides))]


def _collapsed(operation: Operation, source: View, given: list[Value]) -> list[Value]:
    """Axes joined that lie side by side; what joins axes with a gap between them is an AssertionError."""
    shape, strides = list[int](), list[int]()
    for group in operation.groups("reassociation"):
        long = [axis for axis in group if source.shape[axis] != 1] or group[-1:]
        for outer, inner in pairwise(long):
            assert source.strides[outer] == source.strides[inner] * source.shape[inner], operation
        shape.append(prod(source.shape[axis] for axis in group))
        strides.append(source.strides[long[-1]])
    return [source.moved(source.offset, tuple(shape), tuple(strides))]


def _reinterpreted(operation: Operation, source: View, given: list[Value]) -> list[Value]:
    offsets, sizes, steps = _geometry(operation, given)
    return [source.moved(offsets[0], sizes, steps)]


def _part(operation: Operation, source: View, given: list[Value]) -> list[Value]:
    """memref.subview."""
    offsets, sizes, steps = _geometry(operation, given)
    offset = source.offset + sum(at * stride for at, stride in zip(offsets, source.strides, strict=True))
    strides = tuple(step * stride for step, stride in zip(steps, source.strides, strict=True))
    kept = _kept(operation, sizes, memory(operation.result_types[0]))
    return [source.moved(offset, tuple(sizes[i] for i in kept), tuple(strides[i] for i in kept))]


_VIEWS = {
    "cast": _cast,
    "collapse_shape": _collapsed,
    "expand_shape": _expanded,
    "extract_strided_metadata": _metadata,
    "reinterpret_cast": _reinterpreted,
    "subview": _part,
    "view": _typed,
}


def _geometry(operation: Operation, given: list[Value]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Offsets, sizes and strides: from the text, or where it has none the operands in their order."""
    dynamic = iter(given)
    offsets, sizes, steps = (
        tuple(as_integer(next(dynamic)) if number is None else number for number in operation.integers(f"static_{key}"))
        for key in ("offsets", "sizes", "strides")
    )
    assert next(dynamic, None) is None, operation
    return offsets, sizes, steps


def _kept(operation: Operation, sizes: tuple[int, ...], kind: Memory) -> list[int]:
    """The axes a subview keeps: all, or all but as many axes of one element as its type is short of."""
    spare = len(sizes) - len(kind.shape)
    ones = [i for i, size in enumerate(sizes) if size == 1]
    if spare > len(ones):
        raise HivmError(f"line {operation.line}: {operation.name} of {sizes} as {operation.result_types[0]}")
    return [i for i in range(len(sizes)) if i not in ones[len(ones) - spare :]]


def _static(operation: Operation, numbers: tuple[int | None, ...]) -> tuple[int, ...]:
    """Sizes or strides of a type, all of them in its text."""
    if None in numbers:
        raise unknown(operation, f"to {operation.result_types[0]}")
    return tuple(number for number in numbers if number is not None)


def _element(view: View, index: list[Value]) -> View:
    at = sum(as_integer(i) * stride for i, stride in zip(index, view.strides, strict=True))
    return view.moved(view.offset + at, (), ())
