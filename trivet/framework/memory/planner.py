"""Where activation values lie in their arena: two values alive at the same step never share a byte.

Decided once, before serving; it refuses to place anything later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trivet.base.units import align_up


@dataclass(frozen=True)
class Lifetime:
    """A value's size, and the first and last step (inclusive) at which its bytes must be its own."""

    name: str
    num_bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Placement:
    """Where values lie in one range of memory."""

    offsets: dict[str, int]  # name → bytes from the start
    total_bytes: int

    def check(self, lifetimes: Sequence[Lifetime], guard: int = 0) -> None:
        """Values alive together lie apart by at least `guard` bytes, and all lie inside."""
        for i, value in enumerate(lifetimes):
            start = self.offsets[value.name]
            assert 0 <= start <= start + value.num_bytes + guard <= self.total_bytes, f"{value.name} lies outside"
            for other in lifetimes[:i]:
                begin = self.offsets[other.name]
                apart = start + value.num_bytes + guard <= begin or begin + other.num_bytes + guard <= start
                assert apart or not _meet(value, other), f"{value.name} overlaps {other.name}"


def place(lifetimes: Sequence[Lifetime], alignment: int = 64, guard: int = 0) -> Placement:
    """Offsets for all values: the largest first, each into the tightest gap between those it meets in time.

    `guard` bytes stay free behind every value, for tests that look for writes past the end. Placing the largest
    first is the greedy-by-size rule of Pisarchyk and Lee (arXiv:2001.03288), within a few percent of the optimum
    on graphs like ours. The answer depends on the values only, not on their order where sizes differ.
    """
    assert len({value.name for value in lifetimes}) == len(lifetimes), "two values have one name"
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, int, int]] = []  # first and last step, begin and end in bytes
    total_bytes = 0
    for value in sorted(lifetimes, key=lambda value: (-value.num_bytes, value.first, value.name)):
        size = align_up(value.num_bytes + guard, alignment)
        first, last = value.first, value.last
        # Every value against every other, without a call: so a start takes milliseconds less.
        taken = sorted((begin, end) for since, until, begin, end in placed if first <= until and since <= last)
        offsets[value.name] = begin = _tightest_gap(taken, size)
        total_bytes = max(total_bytes, begin + size)
        placed.append((first, last, begin, begin + size))
    return Placement(offsets, total_bytes)


def _meet(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


def _tightest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest hole between `taken` that holds `size`; behind them all when there is none."""
    end = 0
    best: tuple[int, int] | None = None  # the hole's size, its start
    for start, stop in taken:
        if start - end >= size and (best is None or start - end < best[0]):
            best = (start - end, end)
        end = max(end, stop)
    return end if best is None else best[1]
