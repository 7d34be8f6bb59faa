"""How many values fell below each of some bounds. Who exports it, reads it: it knows no metrics library."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np


class Histogram:
    """`edges` are the upper bounds of its buckets, ascending; one without a bound follows. One thread fills it."""

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = [float(edge) for edge in edges]
        self._counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._edges, value)] += 1
        self.sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """As `observe` of each, at once: the gaps of all sequences of a step."""
        found = np.bincount(np.searchsorted(self._edges, values), minlength=len(self._counts))
        self._counts = [before + new for before, new in zip(self._counts, found.tolist(), strict=True)]
        self.sum += sum(values)

    def buckets(self) -> list[tuple[str, int]]:
        """The bound of each bucket as Prometheus writes it, and how many values were at most that."""
        return list(zip([*map(str, self._edges), "+Inf"], accumulate(self._counts), strict=True))
