"""Where the bytes of the slots are, as whoever moves them sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trivet.base.dtypes import Array


class SlotMemory(Protocol):
    """Slots are `slot_bytes` each, the same on every host of one layout."""

    @property
    def slot_bytes(self) -> int: ...

    @property
    def pieces(self) -> Sequence[slice]:
        """The bytes of a slot in the pieces that a step waits for, one after the other, none left out."""
        ...

    def read_slot(self, slot: int, into: Array) -> None:
        """Copy the slot into `into`, uint8 [slot_bytes]."""
        ...

    def write_slot(self, slot: int, piece: slice, source: Array) -> None:
        """Copy that piece of `source`, uint8 [slot_bytes], into the slot."""
        ...
