"""One core while it runs a program: what it reaches, what its pipes were given, what the cores beside it told it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ascend.hivm.cores import ALL, PIPES, Core, Pipe, beside
from ascend.hivm.memory import View
from ascend.hivm.order import Access, Barrier, Event, SetBlock, SetFlag, WaitBlock, WaitFlag
from ascend.hivm.program import HivmError, Operation
from trivet.base.dtypes import Array

Value = int | float | View


@dataclass
class Machine:
    """The cores of a program share `trace` and `told`: (teller, listener, flag) → how often told and not yet heard."""

    core: Core
    program_id: int
    memories: dict[str, Array]
    trace: list[Event] = field(default_factory=list)
    told: Counter[tuple[str, str, int]] = field(default_factory=Counter)

    def pipe(self, name: str) -> Pipe:
        """That pipe of this core. Raises HivmError for one that it does not have."""
        if name not in (*PIPES[self.core.kind], ALL):
            raise HivmError(f"{name} is not a pipe of {self.core.name}")
        return Pipe(self.core.name, name)

    def access(self, operation: Operation, pipe: str, reads: tuple[View, ...], writes: tuple[View, ...]) -> None:
        """Note that the pipe was given the operation, which touches the bytes of these views."""
        touched = (tuple(view.footprint() for view in views) for views in (reads, writes))
        self.trace.append(Access(operation.line, operation.name, self.pipe(pipe), *touched))

    def set_flag(self, operation: Operation, source: str, target: str, event: int, part: str = "") -> None:
        self.trace.append(SetFlag(operation.line, self.pipe(source), self.pipe(target), event, part=part))

    def wait_flag(self, operation: Operation, source: str, target: str, event: int, part: str = "") -> None:
        self.trace.append(WaitFlag(operation.line, self.pipe(source), self.pipe(target), event, part=part))

    def barrier(self, operation: Operation, pipe: str, part: str = "") -> None:
        self.trace.append(Barrier(operation.line, self.pipe(pipe), part=part))

    def set_block(self, operation: Operation, pipe: str, flag: int) -> None:
        """Tell the cores beside this one."""
        self.told.update((self.core.name, listener, flag) for listener in beside(self.core.name))
        self.trace.append(SetBlock(operation.line, self.pipe(pipe), flag))

    def was_told(self, flag: int) -> bool:
        """Whether every core beside this one has told it so, once more than was heard."""
        return all(self.told[teller, self.core.name, flag] > 0 for teller in beside(self.core.name))

    def wait_block(self, operation: Operation, flag: int) -> None:
        """Hear it: `was_told` was asked."""
        self.told.subtract((teller, self.core.name, flag) for teller in beside(self.core.name))
        self.trace.append(WaitBlock(operation.line, self.core.name, flag))


def as_integer(value: Value) -> int:
    assert isinstance(value, int), value
    return value


def as_view(value: Value) -> View:
    assert isinstance(value, View), value
    return value


def unknown(operation: Operation, what: str = "") -> HivmError:
    """The refusal of an operation, or of `what` it is with."""
    return HivmError(f"line {operation.line}: {operation.name}{' ' if what else ''}{what} is not known here")
