"""A histogram for Prometheus that takes all values of a step at once: its client's takes one, at a microsecond each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class GapHistogram(Collector):
    """`edges` are the upper bounds of its buckets, ascending; one without a bound follows. It is to be registered."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], values: Sequence[str], edges: Sequence[float]
    ) -> None:
        self._name, self._text, self._labels, self._values = name, text, labels, values
        self._edges = np.array(edges)
        self._counts = np.zeros(len(edges) + 1, np.int64)
        self._sum = 0.0

    def observe(self, seen: Sequence[float]) -> None:
        self._counts += np.bincount(np.searchsorted(self._edges, seen), minlength=len(self._counts))
        self._sum += sum(seen)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        names = [*map(str, self._edges.tolist()), "+Inf"]
        buckets = list(zip(names, np.cumsum(self._counts).tolist(), strict=True))
        family.add_metric(self._values, buckets, self._sum)
        yield family
