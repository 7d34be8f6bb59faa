"""What happened on which pipe, and whether the flags and barriers order it: races found by happens-before.

Pipes run beside each other and each takes its operations in the order of the program, but without a barrier one
operation of a vector or memory pipe may still be running when the next begins. Only the scalar pipe finishes one before
it begins the next, and it hands out the work: what it has waited for is finished for all that it hands out later. What
it has itself read or written is ordered by a flag alone, as the compiler has it. So what a pipe knows to be finished of
another is always a prefix of it, and one number per pair of pipes says how long that prefix is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ascend.hivm.memory import Footprint
from trivet.base.dtypes import Array

PIPES = ("PIPE_S", "PIPE_V", "PIPE_MTE2", "PIPE_MTE3")
ALL = "PIPE_ALL"


@dataclass(frozen=True)
class Access:
    """One operation at work. Scratch that it writes and reads back counts as written."""

    line: int
    name: str
    pipe: str
    reads: tuple[Footprint, ...]
    writes: tuple[Footprint, ...]


@dataclass(frozen=True)
class SetFlag:
    """`source` raises the flag when all it was given before is finished."""

    line: int
    source: str
    target: str
    event: int


@dataclass(frozen=True)
class WaitFlag:
    """`target` begins nothing more until `source` has raised the flag, and takes it down."""

    line: int
    source: str
    target: str
    event: int


@dataclass(frozen=True)
class Barrier:
    """`pipe`, or every pipe, begins nothing more until all it was given before is finished."""

    line: int
    pipe: str


Event = Access | SetFlag | WaitFlag | Barrier


@dataclass(frozen=True)
class Fault:
    """`kind` is race, hang (a wait that nothing before it ends) or flag (raised twice, or left up at the end)."""

    kind: str
    sentence: str


def faults(trace: Sequence[Event], sizes: dict[str, int], without: Collection[int] = ()) -> list[Fault]:
    """What is wrong with a trace when the synchronisation of the lines in `without` is left out.

    `sizes` are the bytes of each memory that the trace touches. Every pair of lines that race is told once.
    """
    clocks = {pipe: dict.fromkeys(PIPES, 0) for pipe in PIPES}  # pipe → pipe → how many are finished for sure
    issued = dict.fromkeys(PIPES, 0)
    shadows = {name: _Shadow(size) for name, size in sizes.items()}
    flags = dict[tuple[str, str, int], dict[str, int]]()
    lines = {pipe: [0] for pipe in PIPES}  # of the operations that were issued, from one
    found = dict[tuple[object, ...], Fault]()
    for event in trace:
        if isinstance(event, Access):
            known = _known(clocks, event.pipe)
            for pipe, number, footprint in _unordered(event, known, shadows):
                key = (lines[pipe][number], event.line)
                found[key] = found.get(key) or Fault(
                    "race",
                    f"line {event.line}: {event.name} on {event.pipe} touches {footprint.memory} while line {key[0]}"
                    f" on {pipe} may still be at it",
                )
            issued[event.pipe] += 1
            lines[event.pipe].append(event.line)
            for footprint in event.reads:
                shadows[footprint.memory].read(event.pipe, footprint, issued[event.pipe])
            for footprint in event.writes:
                shadows[footprint.memory].written(event.pipe, footprint, issued[event.pipe])
            if event.pipe == "PIPE_S":
                clocks["PIPE_S"]["PIPE_S"] = issued["PIPE_S"]
        elif event.line in without:
            continue
        elif isinstance(event, SetFlag):
            flag = (event.source, event.target, event.event)
            if flag in flags:
                found[flag] = Fault("flag", f"line {event.line}: raises {_named(flag)}, which is up already")
            flags[flag] = _known(clocks, event.source) | {event.source: issued[event.source]}
        elif isinstance(event, WaitFlag):
            flag = (event.source, event.target, event.event)
            if flag not in flags:
                found[flag, "wait"] = Fault("hang", f"line {event.line}: waits for {_named(flag)}, raised by nothing")
                continue
            raised = flags.pop(flag)
            clocks[event.target] = _later(clocks[event.target], raised)
        elif event.pipe == ALL:
            clocks = {pipe: dict(issued) for pipe in PIPES}
        else:
            clocks[event.pipe][event.pipe] = issued[event.pipe]
    for flag in flags:
        found[flag, "end"] = Fault("flag", f"{_named(flag)} is up when the program ends")
    return list(found.values())


def faults_between(traces: Sequence[Sequence[Event]], sizes: dict[str, int]) -> list[Fault]:
    """Bytes of global memory that one program writes and another touches: nothing orders programs among themselves."""
    shared = {name: size for name, size in sizes.items() if name != "UB"}
    used = [bytes_of((event for event in trace if isinstance(event, Access)), shared) for trace in traces]
    return [
        Fault("race", f"program {i} writes bytes of {name} that program {j} touches")
        for i, (_, written) in enumerate(used)
        for j, (touched, _) in enumerate(used)
        for name in shared
        if i != j and (written[name] & touched[name]).any()
    ]


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
        self._reads: Array = np.zeros((len(PIPES), size), np.int32)
        self._writes: Array = np.zeros((len(PIPES), size), np.int32)

    def read(self, pipe: str, footprint: Footprint, number: int) -> None:
        self._reads[PIPES.index(pipe), footprint.at] = number

    def written(self, pipe: str, footprint: Footprint, number: int) -> None:
        self._writes[PIPES.index(pipe), footprint.at] = number

    def last(self, footprint: Footprint, is_write: bool) -> Iterator[tuple[str, int]]:
        """Per pipe the last operation that a read, or a write, of these bytes must come after."""
        for i, pipe in enumerate(PIPES):
            last = self._writes[i, footprint.at].max(initial=0)
            if is_write:
                last = max(last, self._reads[i, footprint.at].max(initial=0))
            yield pipe, int(last)


def _known(clocks: dict[str, dict[str, int]], pipe: str) -> dict[str, int]:
    """What is finished when `pipe` begins what it is handed now."""
    return _later(clocks[pipe], clocks["PIPE_S"] | {"PIPE_S": 0})


def _later(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    return {pipe: max(a[pipe], b[pipe]) for pipe in PIPES}


def _unordered(
    access: Access, known: dict[str, int], shadows: dict[str, _Shadow]
) -> Iterator[tuple[str, int, Footprint]]:
    for footprints, is_write in ((access.reads, False), (access.writes, True)):
        for footprint in footprints:
            for pipe, number in shadows[footprint.memory].last(footprint, is_write):
                if number > known[pipe]:
                    yield pipe, number, footprint


def _named(flag: tuple[str, str, int]) -> str:
    return f"flag {flag[2]} from {flag[0]} to {flag[1]}"
