"""Until when requests are worth an answer. It knows their sequences, and ends none."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from trivet.framework.engine.sequence import Sequence

_FEW = 64  # entries that are not worth looking through


class Deadlines:
    """A heap by time. Of a request that has ended no choices are left; its entry would lie there until its time came,
    which may be as far off as a client likes, so the heap is looked through whenever it has doubled."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, list[Sequence]]] = []
        self._orders = count()
        self._most = _FEW

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, until_s: float, choices: list[Sequence]) -> None:
        """`choices`: those of a request that have not ended, kept so by whoever ends them."""
        if len(self._heap) == self._most:
            self._heap = [each for each in self._heap if each[2]]
            heapify(self._heap)
            self._most = 2 * len(self._heap) + _FEW
        heappush(self._heap, (until_s, next(self._orders), choices))

    def overdue(self, now_s: float) -> list[Sequence]:
        """The choices whose time is over, told once."""
        found: list[Sequence] = []
        while self._heap and self._heap[0][0] <= now_s:
            found += heappop(self._heap)[2]
        return found
