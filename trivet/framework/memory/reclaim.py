"""Which cold slot is given up when a free one is needed. A policy knows of a slot its number, name and depth."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Literal, NamedTuple, Protocol

from trivet.framework.memory.chain import Link

ReclaimName = Literal["cost", "lru"]
DEFAULT_RECLAIM: ReclaimName = "cost"

_STALE_ENDS = 64  # of the heap, that may lie there beside as many as there are cold slots


class Reclaim(Protocol):
    """The cold slots, in some order. Slots of one sequence are added last first."""

    def add(self, slot: int, name: Link, depth: int) -> None:
        """The slot turned cold now; in its sequence `depth` slots come before it."""
        ...

    def remove(self, slot: int) -> None:
        """It is held again, or free."""
        ...

    def take(self) -> int:
        """Remove and return the slot to give up. There is one."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...


class LeastRecent:
    """The slot that turned cold longest ago goes first, so the end of a sequence before its beginning."""

    def __init__(self) -> None:
        self._slots: OrderedDict[int, None] = OrderedDict()

    def add(self, slot: int, name: Link, depth: int) -> None:
        self._slots[slot] = None

    def remove(self, slot: int) -> None:
        del self._slots[slot]

    def take(self) -> int:
        return self._slots.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots)


class _Cold(NamedTuple):
    name: Link
    worth: float
    order: int  # in which slots turned cold


class LeastCost:
    """The slot goes first whose loss costs least: the seconds to compute it again, as often as it was wanted, on top of
    an age that rises to the worth of what was given up last (GreedyDual-Size with frequency: Cao and Irani 1997,
    Cherkasova 1998; slots are of one size, so bytes cancel out).

    What lies behind a slot is of no use without it: only a slot that no cold one comes after can go. A request costs
    O(log n) in the number of cold slots.
    """

    def __init__(self, seconds: Callable[[int], float]) -> None:
        """`seconds` of computing a slot again that so many come before."""
        self._seconds = seconds
        self._age = 0.0
        self._orders = count()
        self._cold: dict[int, _Cold] = {}
        self._slots: dict[bytes, int] = {}  # by name
        self._num_after: Counter[bytes] = Counter()  # cold slots right behind the one of that name
        self._ends: list[tuple[float, int, int]] = []  # a heap of worth, order, slot; some have been taken or are held
        self._wanted: dict[int, tuple[bytes, int]] = {}  # what was in each slot when it turned cold last, and how often

    def add(self, slot: int, name: Link, depth: int) -> None:
        before, times = self._wanted.get(slot, (b"", 0))
        times = times + 1 if before == name.name else 1
        self._wanted[slot] = name.name, times
        self._cold[slot] = _Cold(name, self._age + times * self._seconds(depth), next(self._orders))
        self._slots[name.name] = slot
        self._num_after[name.parent] += 1
        if name.name not in self._num_after:
            self._is_end(slot)

    def remove(self, slot: int) -> None:
        name = self._cold.pop(slot).name
        del self._slots[name.name]
        self._num_after[name.parent] -= 1
        if self._num_after[name.parent] == 0:
            del self._num_after[name.parent]
            if name.parent in self._slots:
                self._is_end(self._slots[name.parent])

    def take(self) -> int:
        while True:
            worth, order, slot = heappop(self._ends)
            cold = self._cold.get(slot)
            if cold is not None and cold.order == order and cold.name.name not in self._num_after:
                break
        self._age = max(self._age, worth)  # an end keeps those before it: they may be worth less
        self.remove(slot)
        del self._wanted[slot]
        return slot

    def __len__(self) -> int:
        return len(self._cold)

    def __iter__(self) -> Iterator[int]:
        return iter(self._cold)

    def _is_end(self, slot: int) -> None:
        """No cold slot comes after it any more, so it can go."""
        if len(self._ends) > 2 * len(self._cold) + _STALE_ENDS:
            self._ends = [(cold.worth, cold.order, each) for each, cold in self._cold.items()
                          if cold.name.name not in self._num_after]  # fmt: skip
            heapify(self._ends)
            return
        cold = self._cold[slot]
        heappush(self._ends, (cold.worth, cold.order, slot))
