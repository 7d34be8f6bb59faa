"""Runs one program of a scheduled kernel in the order of its text, on a UB of bytes, and notes what each pipe is given.

Values come out as on a chip whose flags are all right; whether they are is judged from the trace (`order.py`). An
operation, type or attribute that is not known here is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

import numpy as np

from ascend.hivm import scalar, vector
from ascend.hivm.memory import View
from ascend.hivm.order import ALL, PIPES, Access, Barrier, Event, SetFlag, WaitFlag
from ascend.hivm.program import Block, HivmError, Operation, Program, memory
from trivet.base.dtypes import Array
from trivet.operators.triton.launch import Launch, Size, Stride
from trivet.operators.triton.tiles import UB_BYTES

Value = int | float | View
_UNWRITTEN = 0xFF  # a NaN in every float format: what is read before it was written shows
_VIEWS = frozenset(
    f"memref.{name}"
    for name in ("collapse_shape", "expand_shape", "extract_strided_metadata", "reinterpret_cast", "subview")
)
# Properties of a transfer, with the one value that is known where there is one.
_TRANSFER: dict[str, str | None] = {
    "operandSegmentSizes": None,
    "tcoretype": None,
    "pad_mode": "#hivm.padmode<PadValue>",
    "init_out_buffer": "false",
    "may_implicit_transpose_with_last_axis": "false",
}


@dataclass
class Machine:
    """One vector core: its UB, the global memories it reaches, and what its pipes were given."""

    memories: dict[str, Array]
    program_id: int
    trace: list[Event] = field(default_factory=list)


def execute(program: Program, launch: Launch, operands: Mapping[str, Array], program_id: int) -> list[Event]:
    """Run one of `launch.programs` over contiguous operands; outputs are written in place. Raises HivmError.

    Returns the trace. AssertionError when an access leaves its operand or UB.
    """
    assert all(array.flags.c_contiguous for array in operands.values()), "rows apart would be copied, not written"
    memories = {name: array.reshape(-1).view(np.uint8) for name, array in operands.items()}
    memories["UB"] = np.full(UB_BYTES, _UNWRITTEN, np.uint8)
    machine = Machine(memories, program_id)
    values = dict(zip(program.body.arguments, _arguments(program, launch, operands, memories), strict=True))
    _run(program.body, values, program, machine)
    return machine.trace


def _arguments(
    program: Program, launch: Launch, operands: Mapping[str, Array], memories: Mapping[str, Array]
) -> list[Value]:
    """What the compiler puts first (address of cross-core flags, lock, workspace), the kernel's own, and the grid."""
    nowhere = View("workspace", np.zeros(0, np.uint8), "i8")
    bound: list[Value] = [0, nowhere, nowhere]
    for argument in launch.ordered.values():
        if isinstance(argument, str):
            element = memory(program.body.argument_types[len(bound)]).element
            bound.append(View(argument, memories[argument], element))
        elif isinstance(argument, Size):
            bound.append(operands[argument.operand].shape[argument.axis])
        elif isinstance(argument, Stride):
            array = operands[argument.operand]
            bound.append(array.strides[argument.axis] // array.itemsize)
        else:
            bound.append(argument)
    return [*bound, launch.programs, 1, 1]


def _run(block: Block, values: dict[str, Value], program: Program, machine: Machine) -> list[Value]:
    """The operations of a block in order; returns what it yields."""
    for operation in block.operations:
        given = [values[name] for name in operation.operands]
        if operation.name in ("scf.yield", "func.return"):
            return given
        if operation.name == "scf.for":
            made = _loop(operation, given, values, program, machine)
        elif operation.name == "scf.if":
            made = _run(operation.blocks[0 if given[0] else 1], values, program, machine)
        elif operation.name.startswith("affine."):
            made = [_affine(operation, given, program)]
        elif operation.name.startswith("hivm."):
            made = _device(operation, given, values, machine)
        elif operation.name.startswith("memref."):
            made = _memory(operation, given, machine)
        else:
            made = [_scalar(operation, given)]
        values.update(zip(operation.results, made, strict=True))
    return []


def _loop(
    operation: Operation, given: list[Value], values: dict[str, Value], program: Program, machine: Machine
) -> list[Value]:
    first, end, step = (_integer(value) for value in given[:3])
    carried, block = given[3:], operation.blocks[0]
    assert step > 0, f"line {operation.line}: a loop by steps of {step} never ends"
    for index in range(first, end, step):
        values.update(zip(block.arguments, [index, *carried], strict=True))
        carried = _run(block, values, program, machine)
    return carried


def _affine(operation: Operation, given: list[Value], program: Program) -> int:
    sums = program.maps[operation.properties["map"]](*given)
    if operation.name == "affine.apply":
        return sums[0]
    if operation.name == "affine.min":
        return min(sums)
    if operation.name == "affine.max":
        return max(sums)
    raise _unknown(operation)


def _scalar(operation: Operation, given: list[Value]) -> Value:
    name = operation.name
    if name == "arith.constant":
        return scalar.constant(operation.properties["value"])
    if name == "arith.select":
        return given[1] if given[0] else given[2]
    kind, source = operation.result_types[0], operation.operand_types[0]
    if name == "arith.cmpi":
        predicate = int(operation.properties["predicate"].split()[0])
        if predicate >= scalar.NUM_PREDICATES:
            raise HivmError(f"line {operation.line}: arith.cmpi of unsigned integers is not known here")
        return scalar.compare(predicate, *(_integer(value) for value in given))
    if name in ("arith.extsi", "arith.index_cast", "arith.extui") and (source == "i1") != (name == "arith.extui"):
        raise HivmError(f"line {operation.line}: {name} from {source} is not known here")
    if name in scalar.INTEGER:
        return scalar.wrap(scalar.INTEGER[name](*given), kind)
    if name in scalar.FLOAT and kind == "f32":
        return scalar.FLOAT[name](*given)
    raise _unknown(operation)


def _memory(operation: Operation, given: list[Value], machine: Machine) -> list[Value]:
    name = operation.name
    if name == "memref.load":
        place = _element(_view(given[0]), given[1:])
        machine.trace.append(Access(operation.line, name, "PIPE_S", (place.footprint(),), ()))
        return [place.read().item()]
    if name == "memref.store":
        place = _element(_view(given[1]), given[2:])
        machine.trace.append(Access(operation.line, name, "PIPE_S", (), (place.footprint(),)))
        place.write(np.asarray(given[0]))
        return []
    if name not in _VIEWS:
        raise _unknown(operation)
    source = _view(given[0])
    if name == "memref.extract_strided_metadata":
        return [source.moved(0, (), ()), source.offset, *source.shape, *source.strides]
    kind = memory(operation.result_types[0])
    if name == "memref.collapse_shape":
        return [_collapsed(source, operation)]
    if name == "memref.expand_shape":
        return [source.moved(source.offset, _static(operation, kind.shape), _static(operation, kind.strides))]
    _, moved, resized, restrided = operation.segments()
    dynamic = iter(given[1:])
    offsets, sizes, steps = (
        tuple(_integer(next(dynamic)) if number is None else number for number in operation.integers(f"static_{key}"))
        for key in ("offsets", "sizes", "strides")
    )
    assert len(given) == 1 + len(moved) + len(resized) + len(restrided), operation
    if name == "memref.reinterpret_cast":
        return [source.moved(offsets[0], sizes, steps)]
    offset = source.offset + sum(at * stride for at, stride in zip(offsets, source.strides, strict=True))
    strides = tuple(step * stride for step, stride in zip(steps, source.strides, strict=True))
    kept = _kept(operation, sizes, len(kind.shape))
    return [source.moved(offset, tuple(sizes[i] for i in kept), tuple(strides[i] for i in kept))]


def _kept(operation: Operation, sizes: tuple[int, ...], rank: int) -> list[int]:
    """The axes a subview keeps: all, or all but as many axes of one element as its type is short of."""
    spare = len(sizes) - rank
    ones = [i for i, size in enumerate(sizes) if size == 1]
    if spare > len(ones):
        raise HivmError(f"line {operation.line}: {operation.name} of {sizes} as {operation.result_types[0]}")
    return [i for i in range(len(sizes)) if i not in ones[len(ones) - spare :]]


def _collapsed(source: View, operation: Operation) -> View:
    """Axes joined that lie side by side; what joins axes with a gap between them is an AssertionError."""
    shape, strides = list[int](), list[int]()
    for group in operation.groups("reassociation"):
        long = [axis for axis in group if source.shape[axis] != 1] or group[-1:]
        for outer, inner in pairwise(long):
            assert source.strides[outer] == source.strides[inner] * source.shape[inner], operation
        shape.append(prod(source.shape[axis] for axis in group))
        strides.append(source.strides[long[-1]])
    return source.moved(source.offset, tuple(shape), tuple(strides))


def _device(operation: Operation, given: list[Value], values: Mapping[str, Value], machine: Machine) -> list[Value]:
    name = operation.name.removeprefix("hivm.hir.")
    if name == "set_mask_norm":  # lanes are masked by each instruction's own length, which is what shapes say
        return []
    if name == "get_block_idx":
        return [machine.program_id]
    if name == "pointer_cast":
        kind = memory(operation.result_types[0])
        if kind.space != "ub" or len(given) != 1:
            wanted = f"{operation.result_types[0]} at {len(given)} addresses"
            raise HivmError(f"line {operation.line}: pointer_cast to {wanted} is not known here")
        shape, strides = _static(operation, kind.shape), _static(operation, kind.strides)
        return [View("UB", machine.memories["UB"], kind.element, _integer(given[0]), 0, shape, strides)]
    if name == "pipe_barrier":
        machine.trace.append(Barrier(operation.line, _pipe(operation, "pipe")))
    elif name in ("set_flag", "wait_flag"):
        event = _integer(given[0]) if given else int(operation.word("static_event_id").removeprefix("EVENT_ID"))
        kind_of = SetFlag if name == "set_flag" else WaitFlag
        flag = kind_of(operation.line, _pipe(operation, "set_pipe"), _pipe(operation, "wait_pipe"), event)
        machine.trace.append(flag)
    elif name in ("load", "store"):
        _transfer(operation, given, machine)
    elif name == "varange":
        target, first, *steps = _view(given[0]), *(_integer(value) for value in given[1:])
        machine.trace.append(Access(operation.line, operation.name, "PIPE_V", (), (target.footprint(),)))
        places = np.indices(target.shape)
        target.write(first + sum(place * step for place, step in zip(places, steps, strict=True)))
    elif operation.name in vector.NAMES:
        _vector(operation, values, machine)
    else:
        raise _unknown(operation)
    return []


def _vector(operation: Operation, values: Mapping[str, Value], machine: Machine) -> None:
    """One instruction of the vector pipe: inputs, one output, scratch."""
    if "operandSegmentSizes" in operation.properties:
        inputs, (output,), *scratch = operation.segments()
    else:
        inputs, output, scratch = operation.operands[:1], operation.operands[1], [operation.operands[2:]]
    kinds = dict(zip(operation.operands, operation.operand_types, strict=True))
    sources = [values[name] for name in inputs]
    target = _view(values[output])
    reads = tuple(source.footprint() for source in sources if isinstance(source, View))
    written = [target, *(_view(values[name]) for group in scratch for name in group)]
    machine.trace.append(
        Access(operation.line, operation.name, "PIPE_V", reads, tuple(view.footprint() for view in written))
    )
    numbers = [
        source.read()
        if isinstance(source, View)
        else np.asarray(source, np.int64 if "i" in kinds[name] else np.float32)
        for name, source in zip(inputs, sources, strict=True)
    ]
    target.write(vector.compute(operation, numbers))


def _transfer(operation: Operation, given: list[Value], machine: Machine) -> None:
    """Global memory to UB, or back. What a load fills in beside its elements is not modelled, so it may not."""
    for key, value in operation.properties.items():
        if key not in _TRANSFER or _TRANSFER[key] not in (None, value):
            raise HivmError(f"line {operation.line}: {operation.name} with {key} {value} is not known here")
    source, target, left_padding = _view(given[0]), _view(given[1]), given[3] if len(given) > 3 else 0
    if left_padding != 0 or source.shape != target.shape:
        raise HivmError(f"line {operation.line}: {operation.name} of {source} to {target} is not known here")
    pipe = "PIPE_MTE2" if operation.name == "hivm.hir.load" else "PIPE_MTE3"
    machine.trace.append(Access(operation.line, operation.name, pipe, (source.footprint(),), (target.footprint(),)))
    target.write(source.read())


def _static(operation: Operation, numbers: tuple[int | None, ...]) -> tuple[int, ...]:
    """Sizes or strides of a type, all of them in its text."""
    if None in numbers:
        raise HivmError(f"line {operation.line}: {operation.name} to {operation.result_types[0]} is not known here")
    return tuple(number for number in numbers if number is not None)


def _element(view: View, index: list[Value]) -> View:
    at = sum(_integer(i) * stride for i, stride in zip(index, view.strides, strict=True))
    return view.moved(view.offset + at, (), ())


def _pipe(operation: Operation, key: str) -> str:
    pipe = operation.word(key)
    if pipe not in (*PIPES, ALL):
        raise HivmError(f"line {operation.line}: {pipe} is not a pipe of a vector core")
    return pipe


def _integer(value: Value) -> int:
    assert isinstance(value, int), value
    return value


def _view(value: Value) -> View:
    assert isinstance(value, View), value
    return value


def _unknown(operation: Operation) -> HivmError:
    return HivmError(f"line {operation.line}: {operation.name} is not known here")
