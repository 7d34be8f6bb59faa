"""The time of a simulation: what takes time moves it, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds since a replay began, of whoever acts at the moment."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    @contextmanager
    def of(self, other: Clock) -> Iterator[None]:
        """What happens in here takes the other's time: a thread's of its own, beside the one whose clock this is."""
        mine_s, self.now_s = self.now_s, other.now_s
        try:
            yield
        finally:
            other.now_s, self.now_s = self.now_s, mine_s
