"""A launch through its scheduled kernel: are the values right, and are its programs free of races?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ascend.hivm.cores import cores, own_bytes
from ascend.hivm.execute import execute
from ascend.hivm.order import Event, Fault, faults, faults_between
from ascend.hivm.schedule import schedule
from ascend.lower.agreement import POISON, compare, operand_dtypes, operands
from ascend.lower.stages import describe, lower
from trivet.base.dtypes import Array, DType
from trivet.operators.contract import Sample, operator_named
from trivet.operators.triton.launch import Kernel, Launch
from trivet.operators.triton.tiles import soc_named


@dataclass(frozen=True)
class Ran:
    """A launch, run: a trace for each of its programs, and the bytes of each memory, `shared` and a program's own.

    Where there is a contract, `failure` says what is wrong with the values.
    """

    what: str
    traces: Sequence[Sequence[Event]]
    shared: dict[str, int]
    own: dict[str, int]
    failure: str | None = None

    @property
    def sizes(self) -> dict[str, int]:
        return self.shared | self.own

    @property
    def faults(self) -> list[Fault]:
        """Of each program by itself, and between programs."""
        alone = [fault for trace in self.traces for fault in faults(trace, self.sizes)]
        return [*alone, *faults_between(self.traces, self.shared)]


def run(launch: Launch, given: Mapping[str, Array], dtypes: Mapping[str, DType], soc: str, programs: int) -> Ran:
    """Compile `launch` for `soc` and run it as `programs` programs over contiguous operands, in place.

    Raises LoweringError, HivmError for what the executor does not know, AssertionError for an access out of bounds.
    """
    what, launched = describe(launch, dtypes), replace(launch, programs=programs)
    program = schedule(lower(launch, dtypes, soc), soc, what)
    workspace = np.full(program.workspace_bytes * programs, POISON, np.uint8)
    traces = [execute(program, launched, given, i, workspace) for i in range(programs)]
    shared = {name: array.nbytes for name, array in given.items()} | {"workspace": workspace.nbytes}
    return Ran(what, traces, shared, own_bytes(cores(program.bodies)))


def run_sample(kernel: Kernel, sample: Sample, soc: str, programs: int) -> Ran:
    """`run` on a sample of the kernel's contract, compared with the reference. Raises as it does."""
    operator = operator_named(kernel.operator)
    launch = kernel.launch(sample.call, sample.sizes, soc_named(soc))
    given = operands(operator, sample)
    ran = run(launch, given, operand_dtypes(operator, sample.call), soc, programs)
    what = f"{ran.what} on {dict(sample.sizes)}"
    return replace(ran, what=what, failure=compare(what, operator, sample, given).failure)
