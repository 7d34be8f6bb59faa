"""Where the time of a load goes: seconds by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class LoadTimes:
    """Seconds of each phase of loading, in the order in which they ended; one inside another is not counted twice.

    A phase that comes again goes on where it was.
    """

    phases: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.phases.values())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start, inside = time.perf_counter(), -self.total
        yield
        self.add(name, time.perf_counter() - start - (inside + self.total))

    def add(self, name: str, seconds: float) -> None:
        self.phases[name] = self.phases.get(name, 0.0) + seconds

    def part(self, whole: str, name: str, seconds: float) -> None:
        """So many seconds of the phase `whole` were another."""
        self.add(whole, -seconds)
        self.add(name, seconds)
