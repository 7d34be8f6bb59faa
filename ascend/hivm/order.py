"""What happened on which pipe, and whether flags and barriers order it: races found by happens-before.

Pipes run beside each other and each takes its operations in the order of the program, but without a barrier one
operation of a vector, cube or memory pipe may still be running when the next begins. Only the scalar pipe finishes one
before it begins the next, and it hands out its core's work: what it has waited for is finished for all that it hands
out later. What it has itself read or written is ordered by a flag alone, as the compiler has it. So what a pipe knows
to be finished of another is always a prefix of it, and one number per pair of pipes says how long that prefix is.

Cores of a mixed kernel run beside each other and share nothing but global memory. They tell each other of their work by
flags that count: the n-th wait for a flag ends with its n-th set, whatever the cores did in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ascend.hivm.cores import ALL, SCALAR, Pipe, beside, pipes
from ascend.hivm.memory import Footprint
from trivet.base.dtypes import Array

LIBRARY = "its own"  # the part of an operation whose synchronisation is the device library's, not the schedule's


@dataclass(frozen=True)
class Access:
    """One operation at work. Scratch that it writes and reads back counts as written."""

    line: int
    name: str
    pipe: Pipe
    reads: tuple[Footprint, ...]
    writes: tuple[Footprint, ...]


@dataclass(frozen=True)
class Synchronisation:
    """What orders: a line of the program, or that `part` of a line that does more."""

    line: int
    part: str = field(default="", kw_only=True)

    @property
    def site(self) -> Site:
        return self.line, self.part


@dataclass(frozen=True)
class SetFlag(Synchronisation):
    """`source` raises the flag for a pipe of its core when all it was given before is finished."""

    source: Pipe
    target: Pipe
    event: int


@dataclass(frozen=True)
class WaitFlag(Synchronisation):
    """`target` begins nothing more until `source` has raised the flag, and takes it down."""

    source: Pipe
    target: Pipe
    event: int


@dataclass(frozen=True)
class Barrier(Synchronisation):
    """`pipe`, or every pipe of its core, begins nothing more until all it was given before is finished."""

    pipe: Pipe


@dataclass(frozen=True)
class SetBlock(Synchronisation):
    """The core of `pipe` tells the cores beside it that all the pipe was given before is finished."""

    pipe: Pipe
    flag: int


@dataclass(frozen=True)
class WaitBlock(Synchronisation):
    """`core` hands out nothing more until it was told so once more by every core beside it."""

    core: str
    flag: int


Event = Access | SetFlag | WaitFlag | Barrier | SetBlock | WaitBlock
Site = tuple[int, str]


@dataclass(frozen=True)
class Fault:
    """`kind` is race, hang (a wait that nothing before it ends) or flag (raised twice, or left up at the end)."""

    kind: str
    sentence: str


def faults(trace: Sequence[Event], sizes: dict[str, int], without: Collection[Site] = ()) -> list[Fault]:
    """What is wrong with a trace when the synchronisation at the sites in `without` is left out.

    `sizes` are the bytes of each memory that the trace touches. Every pair of lines that race is told once.
    """
    state = _State(trace, sizes)
    for event in trace:
        if isinstance(event, Access):
            state.access(event)
        elif event.site not in without:
            state.synchronise(event)
    return state.ended()


def faults_between(traces: Sequence[Sequence[Event]], shared: dict[str, int]) -> list[Fault]:
    """Bytes of the memories in `shared` that one program writes and another touches: nothing orders programs among
    themselves."""
    used = [bytes_of((event for event in trace if isinstance(event, Access)), shared) for trace in traces]
    return [
        Fault("race", f"program {i} writes bytes of {name} that program {j} touches")
        for i, (_, written) in enumerate(used)
        for j, (touched, _) in enumerate(used)
        for name in shared
        if i != j and (written[name] & touched[name]).any()
    ]


def cores_of(trace: Sequence[Event]) -> list[str]:
    """The names of the cores that did something."""
    named = dict.fromkeys(
        event.core if isinstance(event, WaitBlock) else event.source.core if isinstance(event, SetFlag | WaitFlag)
        else event.pipe.core
        for event in trace
    )  # fmt: skip
    return list(named)


class _State:
    """What is known to be finished, seen from each pipe, while a trace is gone through."""

    def __init__(self, trace: Sequence[Event], sizes: dict[str, int]) -> None:
        self._pipes = [pipe for core in cores_of(trace) for pipe in pipes(core)]
        self._clocks = {pipe: dict.fromkeys(self._pipes, 0) for pipe in self._pipes}  # how many of each are finished
        self._issued = dict.fromkeys(self._pipes, 0)
        self._lines = {pipe: [0] for pipe in self._pipes}  # of the operations that were issued, from one
        self._shadows = {name: _Shadow(size) for name, size in sizes.items()}
        self._flags = dict[tuple[Pipe, Pipe, int], dict[Pipe, int]]()
        self._told = dict[tuple[str, str, int], deque[dict[Pipe, int]]]()  # teller, listener, flag
        self._found = dict[tuple[object, ...], Fault]()

    def access(self, event: Access) -> None:
        for pipe, number, memory in self._unordered(event):
            line = self._lines[pipe][number]
            self._fault(
                (line, event.line), "race",
                f"line {event.line}: {event.name} on {event.pipe} touches {memory} while line {line} on {pipe} may"
                " still be at it",
            )  # fmt: skip
        self._issued[event.pipe] += 1
        self._lines[event.pipe].append(event.line)
        for footprint in event.reads:
            self._shadows[footprint.memory].read(event.pipe, footprint, self._issued[event.pipe])
        for footprint in event.writes:
            self._shadows[footprint.memory].written(event.pipe, footprint, self._issued[event.pipe])
        if event.pipe.name == SCALAR:
            self._clocks[event.pipe][event.pipe] = self._issued[event.pipe]

    def synchronise(self, event: Synchronisation) -> None:
        if isinstance(event, SetFlag):
            flag = (event.source, event.target, event.event)
            if flag in self._flags:
                self._fault((flag,), "flag", f"line {event.line}: raises {_named(flag)}, which is up already")
            self._flags[flag] = self._finished(event.source)
        elif isinstance(event, WaitFlag):
            flag = (event.source, event.target, event.event)
            if flag not in self._flags:
                self._fault((flag, "wait"), "hang", f"line {event.line}: waits for {_named(flag)}, raised by nothing")
                return
            self._learn(event.target, self._flags.pop(flag))
        elif isinstance(event, SetBlock):
            for listener in beside(event.pipe.core):
                told = self._told.setdefault((event.pipe.core, listener, event.flag), deque())
                told.append(self._finished(event.pipe))
        elif isinstance(event, WaitBlock):
            queues = [self._told.get((teller, event.core, event.flag)) for teller in beside(event.core)]
            if not all(queues):
                named = f"block flag {event.flag} on {event.core}"
                self._fault((named,), "hang", f"line {event.line}: waits for {named}, raised by nothing")
                return
            for queue in queues:
                assert queue is not None
                self._learn(Pipe(event.core, SCALAR), queue.popleft())
        elif isinstance(event, Barrier) and event.pipe.name == ALL:
            own = {pipe: self._issued[pipe] for pipe in pipes(event.pipe.core)}
            for pipe in own:
                self._learn(pipe, own)
        else:
            assert isinstance(event, Barrier), event
            self._clocks[event.pipe][event.pipe] = self._issued[event.pipe]

    def ended(self) -> list[Fault]:
        """Everything that was found, and the flags that are left."""
        for flag in self._flags:
            self._fault((flag, "end"), "flag", f"{_named(flag)} is up when the program ends")
        for (teller, listener, block), told in self._told.items():
            if told:
                self._fault(
                    (teller, listener, block), "flag",
                    f"block flag {block} from {teller} to {listener} is up when the program ends",
                )  # fmt: skip
        return list(self._found.values())

    def _finished(self, pipe: Pipe) -> dict[Pipe, int]:
        """What is finished when all is that `pipe` was given."""
        scalar = Pipe(pipe.core, SCALAR)
        return _later(self._clocks[pipe], self._clocks[scalar] | {scalar: 0}) | {pipe: self._issued[pipe]}

    def _learn(self, pipe: Pipe, finished: dict[Pipe, int]) -> None:
        self._clocks[pipe] = _later(self._clocks[pipe], finished)

    def _unordered(self, access: Access) -> Iterator[tuple[Pipe, int, str]]:
        scalar = Pipe(access.pipe.core, SCALAR)
        own, handed_out = self._clocks[access.pipe], self._clocks[scalar] | {scalar: 0}
        for footprints, is_write in ((access.reads, False), (access.writes, True)):
            for footprint in footprints:
                for pipe, number in self._shadows[footprint.memory].unfinished(footprint, is_write, own, handed_out):
                    yield pipe, number, footprint.memory

    def _fault(self, key: tuple[object, ...], kind: str, sentence: str) -> None:
        self._found.setdefault(key, Fault(kind, sentence))


Mask = dict[str, Array]  # memory → per byte whether it is meant


def bytes_of(accesses: Iterable[Access], sizes: dict[str, int]) -> tuple[Mask, Mask]:
    """The bytes that were touched, and those that were written; of other memories than those in `sizes` nothing."""
    touched, written = ({name: np.zeros(size, np.bool_) for name, size in sizes.items()} for _ in range(2))
    for access in accesses:
        for footprint in (*access.reads, *access.writes):
            if footprint.memory in sizes:
                touched[footprint.memory][footprint.at] = True
        for footprint in access.writes:
            if footprint.memory in sizes:
                written[footprint.memory][footprint.at] = True
    return touched, written


def meet(a: Mask, b: Mask) -> bool:
    return any((a[name] & b[name]).any() for name in a)


class _Shadow:
    """Per pipe and byte of a memory the number of the last operation that read it, and of the last that wrote it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._reads = dict[Pipe, Array]()
        self._writes = dict[Pipe, Array]()
        self._newest = dict[Pipe, int]()  # of all bytes

    def read(self, pipe: Pipe, footprint: Footprint, number: int) -> None:
        self._note(self._reads, pipe, footprint, number)

    def written(self, pipe: Pipe, footprint: Footprint, number: int) -> None:
        self._note(self._writes, pipe, footprint, number)

    def unfinished(
        self, footprint: Footprint, is_write: bool, *finished: dict[Pipe, int]
    ) -> Iterator[tuple[Pipe, int]]:
        """Per pipe the last operation that a read, or a write, of these bytes must come after, if neither of
        `finished` has it."""
        for numbers in (self._writes, self._reads) if is_write else (self._writes,):
            for pipe, of_bytes in numbers.items():
                known = max(clock[pipe] for clock in finished)
                if self._newest[pipe] > known:
                    number = int(of_bytes[footprint.at].max(initial=0))
                    if number > known:
                        yield pipe, number

    def _note(self, numbers: dict[Pipe, Array], pipe: Pipe, footprint: Footprint, number: int) -> None:
        if pipe not in numbers:
            numbers[pipe] = np.zeros(self._size, np.int32)
        numbers[pipe][footprint.at] = number
        self._newest[pipe] = number


def _later(a: dict[Pipe, int], b: dict[Pipe, int]) -> dict[Pipe, int]:
    return a | {pipe: number for pipe, number in b.items() if number > a[pipe]}


def _named(flag: tuple[Pipe, Pipe, int]) -> str:
    return f"flag {flag[2]} from {flag[0]} to {flag[1].name}"
