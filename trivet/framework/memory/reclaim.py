"""Which cold slot is given up when a free one is needed. A policy knows slots by number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol


class Reclaim(Protocol):
    """The cold slots, in some order. Slots of one sequence are added last first."""

    def add(self, slot: int) -> None:
        """The slot turned cold now."""
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

    def add(self, slot: int) -> None:
        self._slots[slot] = None

    def remove(self, slot: int) -> None:
        del self._slots[slot]

    def take(self) -> int:
        return self._slots.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots)
