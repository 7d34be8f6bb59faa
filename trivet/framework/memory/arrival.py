"""Blocks that come from files while the step that needs them runs: piece by piece, each proved before it is in a slot.

A gate tells the step how far they are. Once an arrival has ended, nothing is written to its slots any more.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from trivet._native import Gate
from trivet.framework.memory.block import checksum
from trivet.framework.memory.files import Files
from trivet.framework.memory.host_tier import HostBlock
from trivet.framework.memory.slot_memory import SlotMemory


@dataclass
class Arrival:
    """`blocks`, pinned, on their way into `slots`. Those that have checksums already are only copied."""

    blocks: Sequence[HostBlock]
    slots: Sequence[int]
    gate: Gate
    _lock: threading.Lock = field(default_factory=threading.Lock)  # over the slots: held while a piece is written
    _is_ended: bool = False

    def end(self) -> None:
        """The slots are somebody else's from here on."""
        with self._lock:
            self._is_ended = True
        self.gate.fail()

    def bring(self, files: Files, memory: SlotMemory) -> bool:
        """Move all: the first piece of every block, then the second of every one. False when one did not come, and the
        gate has failed; else the blocks are whole, their checksums beside them."""
        recorded: list[tuple[int, ...]] = []  # of each block, known from its first piece on
        for number, piece in enumerate(memory.pieces):
            for i, (block, slot) in enumerate(zip(self.blocks, self.slots, strict=True)):
                if number == 0:
                    recorded.append(block.checksums or files.begin(block.link) or ())
                if not recorded[i] or not self._bring_piece(
                    files, memory, block, slot, number, piece, recorded[i][number]
                ):
                    self.gate.fail()
                    return False
                self.gate.advance()
        for block, proofs in zip(self.blocks, recorded, strict=True):
            block.checksums = proofs
        return True

    def _bring_piece(
        self, files: Files, memory: SlotMemory, block: HostBlock, slot: int, number: int, piece: slice, recorded: int
    ) -> bool:
        if self.gate.has_failed:  # too late, or nobody wants it any more
            return False
        if block.checksums:
            is_proved = checksum(block.payload[piece]) == recorded
        else:
            is_proved = files.read_piece(block.link, number, recorded, block.payload)
        if not is_proved:
            return False
        with self._lock:
            if not self._is_ended:
                memory.write_slot(slot, piece, block.payload)
            return not self._is_ended
