"""Runs one program of a scheduled kernel in the order of its text, on memories of bytes, and notes what each pipe is
given.

Values come out as on a chip whose flags are all right; whether they are is judged from the trace (`order.py`). The
cores of a mixed kernel take turns: each goes on until it waits to be told something. An operation, type or attribute
that is not known here is refused by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping

import numpy as np

from ascend.hivm import cube, scalar, vector
from ascend.hivm.cores import SCALAR, cores, own_bytes
from ascend.hivm.machine import Machine, Value, as_integer, as_view, unknown
from ascend.hivm.memory import View
from ascend.hivm.order import Event
from ascend.hivm.program import Block, HivmError, Operation, Program, memory
from ascend.hivm.references import at_address, refer
from trivet.base.dtypes import Array
from trivet.operators.triton.launch import Launch, Size, Stride

_UNWRITTEN = 0xFF  # a NaN in every float format: what is read before it was written shows
# What sets a core up and does no work: lanes are masked by each instruction's own length, which is what shapes say.
_NOTHING = frozenset(("hivm.hir.set_mask_norm", "hivm.hir.set_ffts_base_addr"))
# Properties of a transfer, with the one value that is known where there is one.
_TRANSFER: dict[str, str | None] = {
    "operandSegmentSizes": None,
    "tcoretype": None,
    "pad_mode": "#hivm.padmode<PadValue>",
    "init_out_buffer": "false",
    "may_implicit_transpose_with_last_axis": "false",
}

Run = Generator[str, None, list[Value]]  # yields what it waits for, whenever it has to


def execute(
    program: Program, launch: Launch, operands: Mapping[str, Array], program_id: int, workspace: Array | None = None
) -> list[Event]:
    """Run one of `launch.programs` over contiguous operands; outputs are written in place. Raises HivmError.

    `workspace` is of `program.workspace_bytes` for each program of the launch; one that has none may go without.
    Returns the trace of all cores, nothing before what it waited for. AssertionError when an access leaves its memory.
    """
    assert all(array.flags.c_contiguous for array in operands.values()), "rows apart would be copied, not written"
    memories = {name: array.reshape(-1).view(np.uint8) for name, array in operands.items()}
    memories["workspace"] = np.zeros(0, np.uint8) if workspace is None else workspace
    trace, told = list[Event](), Counter[tuple[str, str, int]]()
    runs = dict[str, Run]()
    for core in cores(program.bodies):
        own = {name: np.full(size, _UNWRITTEN, np.uint8) for name, size in own_bytes([core]).items()}
        machine = Machine(core, program_id, memories | own, trace, told)
        body = program.bodies[core.kind]
        values = dict(zip(body.arguments, _arguments(body, launch, operands, memories), strict=True))
        runs[core.name] = _run(body, values, program, machine)
    _take_turns(program, runs, trace)
    return trace


def _take_turns(program: Program, runs: dict[str, Run], trace: list[Event]) -> None:
    """Every core until it waits, round and round. HivmError when all that are left wait."""
    while runs:
        before, waits = len(trace), list[str]()
        for core, run in list(runs.items()):
            try:
                waits.append(next(run))
            except StopIteration:
                del runs[core]
        if len(waits) == len(runs) > 0 and len(trace) == before:
            raise HivmError(f"{program.name} hangs: {'; '.join(waits)}")


def _arguments(
    body: Block, launch: Launch, operands: Mapping[str, Array], memories: Mapping[str, Array]
) -> list[Value]:
    """What the compiler puts first (address of cross-core flags, lock, workspace), the kernel's own, and the grid."""
    lock, workspace = View("lock", np.zeros(0, np.uint8), "i8"), View("workspace", memories["workspace"], "i8")
    bound: list[Value] = [0, lock, workspace]
    for argument in launch.ordered.values():
        if isinstance(argument, str):
            element = memory(body.argument_types[len(bound)]).element
            bound.append(View(argument, memories[argument], element))
        elif isinstance(argument, Size):
            bound.append(operands[argument.operand].shape[argument.axis])
        elif isinstance(argument, Stride):
            array = operands[argument.operand]
            bound.append(array.strides[argument.axis] // array.itemsize)
        else:
            bound.append(argument)
    return [*bound, launch.programs, 1, 1]


def _run(block: Block, values: dict[str, Value], program: Program, machine: Machine) -> Run:
    """The operations of a block in order; returns what it yields to the block around it."""
    for operation in block.operations:
        given = [values[name] for name in operation.operands]
        made: list[Value] = []
        if operation.name in ("scf.yield", "func.return"):
            return given
        if operation.name == "scf.for":
            made = yield from _loop(operation, given, values, program, machine)
        elif operation.name == "scf.if":
            made = yield from _run(operation.blocks[0 if given[0] else 1], values, program, machine)
        elif operation.name == "hivm.hir.sync_block_wait":
            flag = _block_flag(operation)
            while not machine.was_told(flag):
                yield f"{machine.core.name} waits for block flag {flag} in line {operation.line}"
            machine.wait_block(operation, flag)
        elif operation.name.startswith("affine."):
            made = [_affine(operation, given, program)]
        elif operation.name.startswith("hivm."):
            made = _device(operation, given, values, machine)
        elif operation.name.startswith("memref."):
            made = refer(operation, given, machine)
        else:
            made = [_scalar(operation, given)]
        values.update(zip(operation.results, made, strict=True))
    return []


def _loop(
    operation: Operation, given: list[Value], values: dict[str, Value], program: Program, machine: Machine
) -> Run:
    first, end, step = (as_integer(value) for value in given[:3])
    carried, block = given[3:], operation.blocks[0]
    assert step > 0, f"line {operation.line}: a loop by steps of {step} never ends"
    for index in range(first, end, step):
        values.update(zip(block.arguments, [index, *carried], strict=True))
        carried = yield from _run(block, values, program, machine)
    return carried


def _affine(operation: Operation, given: list[Value], program: Program) -> int:
    sums = program.maps[operation.properties["map"]](*given)
    if operation.name == "affine.apply":
        return sums[0]
    if operation.name == "affine.min":
        return min(sums)
    if operation.name == "affine.max":
        return max(sums)
    raise unknown(operation)


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
            raise unknown(operation, "of unsigned integers")
        return scalar.compare(predicate, *(as_integer(value) for value in given))
    if name in ("arith.extsi", "arith.index_cast", "arith.extui") and (source == "i1") != (name == "arith.extui"):
        raise unknown(operation, f"from {source}")
    if name in scalar.INTEGER:
        return scalar.wrap(scalar.INTEGER[name](*given), kind)
    if name in scalar.FLOAT and kind == "f32":
        return scalar.FLOAT[name](*given)
    raise unknown(operation)


def _device(operation: Operation, given: list[Value], values: Mapping[str, Value], machine: Machine) -> list[Value]:
    name = operation.name.removeprefix("hivm.hir.")
    if name == "get_block_idx":
        return [machine.program_id]
    if name == "get_sub_block_idx":
        return [machine.core.number]
    if name == "pointer_cast":
        return [at_address(operation, given, machine)]
    if name == "pipe_barrier":
        machine.barrier(operation, operation.word("pipe"))
    elif name in ("set_flag", "wait_flag"):
        event = as_integer(given[0]) if given else int(operation.word("static_event_id").removeprefix("EVENT_ID"))
        note = machine.set_flag if name == "set_flag" else machine.wait_flag
        note(operation, operation.word("set_pipe"), operation.word("wait_pipe"), event)
    elif name == "sync_block_set":
        machine.set_block(operation, operation.word("tpipe"), _block_flag(operation))
    elif name in ("load", "store"):
        _transfer(operation, given, machine)
    elif operation.name in cube.NAMES:
        cube.run(operation, given, machine)
    elif name == "varange":
        target, first, *steps = as_view(given[0]), *(as_integer(value) for value in given[1:])
        machine.access(operation, "PIPE_V", (), (target,))
        places = np.indices(target.shape)
        target.write(first + sum(place * step for place, step in zip(places, steps, strict=True)))
    elif operation.name in vector.NAMES:
        _vector(operation, values, machine)
    elif operation.name not in _NOTHING:
        raise unknown(operation)
    return []


def _vector(operation: Operation, values: Mapping[str, Value], machine: Machine) -> None:
    """One instruction of the vector pipe: inputs, one output, scratch. A cube core can fill L1, and nothing else."""
    if "operandSegmentSizes" in operation.properties:
        inputs, (output,), *scratch = operation.segments()
    else:
        inputs, output, scratch = operation.operands[:1], operation.operands[1], [operation.operands[2:]]
    kinds = dict(zip(operation.operands, operation.operand_types, strict=True))
    sources = [values[name] for name in inputs]
    target = as_view(values[output])
    reads = tuple(source for source in sources if isinstance(source, View))
    written = (target, *(as_view(values[name]) for group in scratch for name in group))
    fills = machine.core.kind == "AIC" and operation.name == "hivm.hir.vbrc" and not reads
    machine.access(operation, "PIPE_MTE2" if fills else "PIPE_V", reads, written)
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
            raise unknown(operation, f"with {key} {value}")
    source, target, left_padding = as_view(given[0]), as_view(given[1]), given[3] if len(given) > 3 else 0
    if left_padding != 0 or source.shape != target.shape:
        raise unknown(operation, f"of {source} to {target}")
    machine.access(operation, "PIPE_MTE2" if operation.name == "hivm.hir.load" else "PIPE_MTE3", (source,), (target,))
    target.write(source.read())


def _block_flag(operation: Operation) -> int:
    """The number of a flag between cores; what waits for it is always the scalar pipe."""
    if operation.word("pipe") != SCALAR or "static_flag_id" not in operation.properties:
        raise unknown(operation, f"by {operation.word('pipe')}")
    return int(operation.properties["static_flag_id"].partition(" : ")[0])
