"""A launch through its scheduled kernel: are the values right, and are its programs free of races?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ascend.hivm.execute import execute
from ascend.hivm.order import Event, Fault, faults, faults_between
from ascend.hivm.schedule import schedule
from ascend.lower.right import operand_dtypes
from ascend.lower.stages import describe, lower
from trivet.base.dtypes import Array, DType, cast, storage
from trivet.operators.blocks import from_blocks, to_blocks
from trivet.operators.contract import Operator, Sample, operator_named, resolve
from trivet.operators.triton.launch import Kernel, Launch
from trivet.operators.triton.tiles import UB_BYTES, soc_named
from trivet.operators.verify import reference_outputs

_POISON = 0xFF  # a NaN in every float format: what is not written shows
_ULP: dict[DType, float] = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Ran:
    """A launch, run: a trace for each of its programs, and the bytes of each memory.

    Where there is a contract, `worst` is the largest error as a share of what is allowed, `failure` what is wrong.
    """

    what: str
    traces: Sequence[Sequence[Event]]
    sizes: dict[str, int]
    worst: float = 0.0
    failure: str | None = None

    @property
    def faults(self) -> list[Fault]:
        """Of each program by itself, and between programs."""
        alone = [fault for trace in self.traces for fault in faults(trace, self.sizes)]
        return [*alone, *faults_between(self.traces, self.sizes)]


def run(launch: Launch, operands: Mapping[str, Array], dtypes: Mapping[str, DType], soc: str, programs: int) -> Ran:
    """Compile `launch` for `soc` and run it as `programs` programs over contiguous operands, in place.

    Raises LoweringError, HivmError for what the executor does not know, AssertionError for an access out of bounds.
    """
    what, shared = describe(launch, dtypes), replace(launch, programs=programs)
    program = schedule(lower(launch, dtypes, soc), soc, what)
    traces = [execute(program, shared, operands, i) for i in range(programs)]
    return Ran(what, traces, {name: array.nbytes for name, array in operands.items()} | {"UB": UB_BYTES})


def run_sample(kernel: Kernel, sample: Sample, soc: str, programs: int) -> Ran:
    """`run` on a sample of the kernel's contract, compared with the reference. Raises as it does."""
    operator = operator_named(kernel.operator)
    launch = kernel.launch(sample.call, sample.sizes, soc_named(soc))
    operands = _operands(operator, sample)
    ran = run(launch, operands, operand_dtypes(operator, sample.call), soc, programs)
    worst, failure = _compare(operator, sample, operands)
    return replace(ran, what=f"{ran.what} on {dict(sample.sizes)}", worst=worst, failure=failure)


def _operands(operator: Operator, sample: Sample) -> dict[str, Array]:
    """Inputs as copies, outputs poisoned."""
    operands = {
        argument.name: to_blocks(array) if spec.layout == "blocks" else np.array(array, order="C")
        for argument, spec, array in zip(operator.inputs, sample.call.inputs, sample.inputs, strict=True)
        if spec is not None and array is not None
    }
    for argument, spec in zip(operator.outputs, sample.call.outputs, strict=False):
        if argument.name not in operator.updates:
            assert spec.dtype is not None
            shape, item = tuple(resolve(axis, sample.sizes) for axis in spec.axes), storage(spec.dtype)
            operands[argument.name] = np.full((*shape, item.itemsize), _POISON, np.uint8).view(item)[..., 0]
    return operands


def _compare(operator: Operator, sample: Sample, operands: dict[str, Array]) -> tuple[float, str | None]:
    """The contract's tolerance and the rounding of the output's dtype are what is allowed."""
    worst, wanted = 0.0, reference_outputs(operator, sample)
    for argument, spec, want in zip(operator.outputs, sample.call.outputs, wanted, strict=False):
        assert spec.dtype is not None
        updated = operator.updates.get(argument.name)
        made = operands[argument.name] if updated is None else from_blocks(operands[updated])
        got = cast(made, spec.dtype, "float32").astype(np.float64)
        rounded = cast(cast(want.astype(np.float32), "float32", spec.dtype), spec.dtype, "float32").astype(np.float64)
        allowed = operator.tolerance.allows(rounded, "float32") + _ULP[spec.dtype] * np.abs(rounded)
        error = np.abs(got - rounded)
        if not (error <= allowed).all():
            at = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error - allowed)), error.shape)
            place = ", ".join(str(i) for i in at)
            return float("inf"), f"{argument.name}[{place}] is {got[at]:.9g}, the reference {rounded[at]:.9g}"
        worst = max(worst, float((error / np.maximum(allowed, 1e-300)).max(initial=0.0)))
    return worst, None
