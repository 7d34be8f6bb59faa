"""Synchronisation left out of a scheduled program, one piece at a time: does the race detector see it?

A dropped set or wait is seen by counting flags already. So every flag is also dropped whole, its sets and its waits
together: nothing hangs and nothing is left up, and only a race can show that it was needed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from ascend.hivm.cores import ALL, Pipe, beside, pipes
from ascend.hivm.order import (
    LIBRARY,
    Access,
    Barrier,
    Event,
    SetBlock,
    SetFlag,
    Site,
    Synchronisation,
    WaitBlock,
    WaitFlag,
    bytes_of,
    faults,
    meet,
)

_KINDS = {Barrier: "barrier", SetFlag: "set", WaitFlag: "wait", SetBlock: "block set", WaitBlock: "block wait"}


@dataclass(frozen=True)
class Mutant:
    """What is left out at `sites`: a set, a wait, a barrier, or a flag with all its sets and waits."""

    kind: str
    sites: frozenset[Site]
    orders: frozenset[tuple[Pipe, Pipe]]  # what the first was given before is ordered before what the second is after


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
        seen = frozenset(fault.kind for fault in faults(trace, sizes, mutant.sites))
        judged.append(Outcome(mutant, seen, None if seen else _reason(mutant, trace, sizes)))
    return judged


def mutants(trace: Sequence[Event]) -> Iterator[Mutant]:
    """In the order of the program: sets, waits and barriers by their sites, then whole flags. What the device library
    does by itself is not the schedule's to leave out."""
    orders = dict[Site, frozenset[tuple[Pipe, Pipe]]]()
    kinds = dict[Site, str]()
    for event in trace:
        if isinstance(event, Synchronisation) and event.part != LIBRARY:
            orders[event.site] = orders.get(event.site, frozenset()) | _orders(event)
            kinds[event.site] = _KINDS[type(event)]
    for site in sorted(orders):
        yield Mutant(kinds[site], frozenset((site,)), orders[site])
    for kind, sites in _whole_flags(trace):
        yield Mutant(kind, sites, frozenset().union(*(orders[site] for site in sites)))


def _orders(event: Synchronisation) -> frozenset[tuple[Pipe, Pipe]]:
    """Which pipes it orders after which; of flags between cores, any that may be meant."""
    if isinstance(event, SetFlag | WaitFlag):
        return frozenset(((event.source, event.target),))
    if isinstance(event, Barrier):
        of = pipes(event.pipe.core) if event.pipe.name == ALL else (event.pipe,)
        return frozenset(product(of, of))
    if isinstance(event, SetBlock):
        told = (pipe for core in beside(event.pipe.core) for pipe in pipes(core))
        return frozenset((event.pipe, pipe) for pipe in told)
    assert isinstance(event, WaitBlock), event
    tellers = (pipe for core in beside(event.core) for pipe in pipes(core))
    return frozenset(product(tellers, pipes(event.core)))


def _whole_flags(trace: Sequence[Event]) -> Iterator[tuple[str, frozenset[Site]]]:
    """Sites that raise and take down the same flag for each other: a wait belongs to the set that ended it."""
    groups = list[tuple[str, set[Site]]]()
    for kind, pair in _pairs(trace):
        if LIBRARY in (part for _, part in pair):
            continue
        joined = [sites for _, sites in groups if sites & pair]
        groups = [group for group in groups if group[1] not in joined]
        groups.append((kind, pair.union(*joined)))
    for kind, whole in groups:
        yield kind, frozenset(whole)


def _pairs(trace: Sequence[Event]) -> Iterator[tuple[str, set[Site]]]:
    """Every set with the wait that it ended."""
    raised = dict[tuple[Pipe, Pipe, int], Site]()
    told = defaultdict[tuple[str, str, int], deque[Site]](deque)
    for event in trace:
        if isinstance(event, SetFlag):
            raised[event.source, event.target, event.event] = event.site
        elif isinstance(event, WaitFlag):
            yield "flag", {event.site, raised[event.source, event.target, event.event]}
        elif isinstance(event, SetBlock):
            for listener in beside(event.pipe.core):
                told[event.pipe.core, listener, event.flag].append(event.site)
        elif isinstance(event, WaitBlock):
            for teller in beside(event.core):
                yield "block flag", {event.site, told[teller, event.core, event.flag].popleft()}


def _reason(mutant: Mutant, trace: Sequence[Event], sizes: dict[str, int]) -> str:
    """Why a mutant does no harm in this program."""
    standing = [pair for pair in mutant.orders if _stands_between(mutant.sites, *pair, trace)]
    if not standing:
        return "it has nothing before it or nothing after it to order"
    if not any(_share(trace, sizes, *pair) for pair in standing):
        return "neither of its pipes writes a byte that the other touches"
    return "other synchronisation orders the same bytes"


def _stands_between(sites: frozenset[Site], earlier: Pipe, later: Pipe, trace: Sequence[Event]) -> bool:
    """Whether work of the earlier pipe was ever finished by it before work of the later one began."""
    has_begun, is_raised, is_ordered = False, False, False
    for event in trace:
        if isinstance(event, Access):
            if is_ordered and event.pipe == later:
                return True
            has_begun = has_begun or event.pipe == earlier
        elif event.site in sites and (earlier, later) in _orders(event):
            is_raised = has_begun if isinstance(event, SetFlag | SetBlock) else is_raised
            is_ordered = is_ordered or (has_begun if isinstance(event, Barrier) else is_raised)
    return False


def _share(trace: Sequence[Event], sizes: dict[str, int], earlier: Pipe, later: Pipe) -> bool:
    """Whether an operation of one pipe touches a byte that another operation of the other writes."""
    if earlier == later:
        return _writes_twice(trace, sizes, earlier)
    (touched, written), (touched_later, written_later) = (
        bytes_of((event for event in trace if isinstance(event, Access) and event.pipe == pipe), sizes)
        for pipe in (earlier, later)
    )
    return meet(written, touched_later) or meet(touched, written_later)


def _writes_twice(trace: Sequence[Event], sizes: dict[str, int], pipe: Pipe) -> bool:
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
