"""Synchronisation left out of a scheduled program, one piece at a time: does the race detector see it?

A dropped set or wait is seen by counting flags already. So every flag is also dropped whole, its sets and its waits
together: nothing hangs and nothing is left up, and only a race can show that it was needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ascend.hivm.order import ALL, PIPES, Access, Barrier, Event, SetFlag, WaitFlag, bytes_of, faults, meet


@dataclass(frozen=True)
class Mutant:
    """`lines` are left out: of a set, a wait, a barrier, or a flag with all its sets and waits."""

    kind: str
    lines: frozenset[int]
    pipes: tuple[str, str]  # what is ordered after what


@dataclass(frozen=True)
class Outcome:
    """`seen` are the kinds of fault that were found; `reason` says why there were none."""

    mutant: Mutant
    seen: frozenset[str]
    reason: str | None


def outcomes(trace: Sequence[Event], sizes: dict[str, int]) -> list[Outcome]:
    """Every mutant of what one program did, judged. The program itself must be without faults."""
    judged = []
    for mutant in mutants(trace):
        seen = frozenset(fault.kind for fault in faults(trace, sizes, mutant.lines))
        judged.append(Outcome(mutant, seen, None if seen else _reason(mutant, trace, sizes)))
    return judged


def mutants(trace: Sequence[Event]) -> Iterator[Mutant]:
    """In the order of the program: sets, waits and barriers by their lines, then whole flags."""
    for line, event in sorted({event.line: event for event in trace}.items()):
        if isinstance(event, Barrier):
            yield Mutant("barrier", frozenset((line,)), (event.pipe, event.pipe))
        elif isinstance(event, SetFlag | WaitFlag):
            kind = "set" if isinstance(event, SetFlag) else "wait"
            yield Mutant(kind, frozenset((line,)), (event.source, event.target))
    for pipes, lines in _whole_flags(trace):
        yield Mutant("flag", lines, pipes)


def _whole_flags(trace: Sequence[Event]) -> Iterator[tuple[tuple[str, str], frozenset[int]]]:
    """Lines that raise and take down the same flag for each other: a wait belongs to the set that ended it."""
    groups = list[tuple[tuple[str, str], set[int]]]()
    raised = dict[tuple[str, str, int], int]()
    for event in trace:
        if isinstance(event, SetFlag):
            raised[event.source, event.target, event.event] = event.line
        elif isinstance(event, WaitFlag):
            pair = {event.line, raised[event.source, event.target, event.event]}
            joined = [group for group in groups if group[1] & pair]
            groups = [group for group in groups if group not in joined]
            groups.append(((event.source, event.target), pair.union(*(lines for _, lines in joined))))
    for pipes, lines in groups:
        yield pipes, frozenset(lines)


def _reason(mutant: Mutant, trace: Sequence[Event], sizes: dict[str, int]) -> str:
    """Why a mutant does no harm in this program."""
    if not _stands_between(mutant, trace):
        return "it has nothing before it or nothing after it to order"
    if ALL not in mutant.pipes and not _share(trace, sizes, *mutant.pipes):
        return "neither of its pipes writes a byte that the other touches"
    return "other synchronisation orders the same bytes"


def _stands_between(mutant: Mutant, trace: Sequence[Event]) -> bool:
    """Whether work of the earlier pipe was ever finished by it before work of the later one began."""
    earlier, later = (set(PIPES) if pipe == ALL else {pipe} for pipe in mutant.pipes)
    has_begun, is_raised, is_ordered = False, False, False
    for event in trace:
        if isinstance(event, Access):
            if is_ordered and event.pipe in later:
                return True
            has_begun = has_begun or event.pipe in earlier
        elif event.line in mutant.lines:
            is_raised = has_begun if isinstance(event, SetFlag) else is_raised
            is_ordered = is_ordered or (has_begun if isinstance(event, Barrier) else is_raised)
    return False


def _share(trace: Sequence[Event], sizes: dict[str, int], earlier: str, later: str) -> bool:
    """Whether an operation of one pipe touches a byte that another operation of the other writes."""
    if earlier == later:
        return _writes_twice(trace, sizes, earlier)
    (touched, written), (touched_later, written_later) = (
        bytes_of((event for event in trace if isinstance(event, Access) and event.pipe == pipe), sizes)
        for pipe in (earlier, later)
    )
    return meet(written, touched_later) or meet(touched, written_later)


def _writes_twice(trace: Sequence[Event], sizes: dict[str, int], pipe: str) -> bool:
    """Whether two operations of one pipe touch the same byte, and one of them writes it."""
    touched, written = bytes_of((), sizes)
    for event in trace:
        if isinstance(event, Access) and event.pipe == pipe:
            its_touched, its_written = bytes_of((event,), sizes)
            if meet(touched, its_written) or meet(written, its_touched):
                return True
            for name in sizes:
                touched[name] |= its_touched[name]
                written[name] |= its_written[name]
    return False
