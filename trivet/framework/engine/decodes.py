"""Those that decode: a row for each in arrays that steps change in place, so that a step makes nothing of them anew.

The truth is in the sequences; a row repeats of its own what a step needs. It knows neither the pool nor the line.
"""

from __future__ import annotations

import numpy as np

from trivet.base.dtypes import Array
from trivet.framework.engine.cost_model import Work
from trivet.framework.engine.sequence import Sequence

_FIRST_WIDTH = 8  # slots of a row; the table grows with the longest


class Decodes:
    """At most `max_rows` sequences that lack one token each. The last row takes the place of one that leaves.

    Rows behind theirs are free for the prefills of a step: their slots are laid beside those of the decodes.
    """

    def __init__(self, max_rows: int, slot_tokens: int) -> None:
        self.sequences: list[Sequence] = []  # by row
        self._slot_tokens = slot_tokens
        self._tokens = np.zeros(max_rows, np.int32)  # to compute next
        self._positions = np.zeros(max_rows, np.int32)  # theirs
        self._rooms = np.zeros(max_rows, np.int32)  # positions in the slots that are held
        self._slots = np.zeros((max_rows, _FIRST_WIDTH), np.int32)  # by position, padded with 0

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def tokens(self) -> Array:
        return self._tokens[: len(self.sequences)]

    @property
    def positions(self) -> Array:
        return self._positions[: len(self.sequences)]

    def join(self, sequence: Sequence) -> None:
        """It lacks one token from now on."""
        assert sequence.row is None and sequence.num_pending == 1, "it does not decode"
        row = sequence.row = len(self.sequences)
        self.sequences.append(sequence)
        self._tokens[row] = sequence.tokens[-1]
        self._positions[row] = sequence.num_computed
        self._lay_slots(row, sequence)

    def leave(self, sequence: Sequence) -> None:
        """It ends or steps back. Nothing happens when it has no row."""
        if sequence.row is None:
            return
        row, last = sequence.row, self.sequences.pop()
        sequence.row = None
        if last is sequence:
            return
        self.sequences[row], last.row, end = last, row, len(self.sequences)
        for each in (self._tokens, self._positions, self._rooms, self._slots):
            each[row] = each[end]

    def without_room(self) -> list[Sequence]:
        """Those whose next token has no slot, in no order."""
        num_rows = len(self.sequences)
        full = np.flatnonzero(self._positions[:num_rows] >= self._rooms[:num_rows])
        return [self.sequences[row] for row in full.tolist()]

    def grew(self, sequence: Sequence) -> None:
        """It holds more slots than before."""
        assert sequence.row is not None, "it has no row"
        self._lay_slots(sequence.row, sequence)

    def computed(self) -> list[Sequence]:
        """A step has computed their tokens; those that have filled a slot with it."""
        for sequence in self.sequences:
            sequence.num_computed += 1
        positions = self.positions
        positions += 1
        return [self.sequences[row] for row in np.flatnonzero(positions % self._slot_tokens == 0).tolist()]

    def chose(self, tokens: Array) -> None:
        """Their next tokens, by row: they lack one again."""
        self.tokens[:] = tokens

    def work(self) -> Work:
        """What a step does that computes all of them and nothing else."""
        num_rows = len(self.sequences)
        context = int(self.positions.sum(dtype=np.int64)) + num_rows
        return Work(num_rows, num_rows, context, context)

    def slots_beside(self, prefills: list[Sequence]) -> Array:
        """The slots of all rows and of `prefills` after them [sequences, most slots of one]; good for one step."""
        num_rows = len(self.sequences)
        for row, sequence in enumerate(prefills, num_rows):
            self._lay_slots(row, sequence)
        end = num_rows + len(prefills)
        return self._slots[:end, : int(self._rooms[:end].max()) // self._slot_tokens]

    def check(self) -> None:
        """Every row says what its sequence says."""
        for row, sequence in enumerate(self.sequences):
            num_slots = len(sequence.slots)
            assert sequence.row == row, f"row {row} is of a sequence that stands in {sequence.row}"
            assert sequence.num_pending == 1, f"row {row} lacks {sequence.num_pending} tokens"
            said = (int(self._tokens[row]), int(self._positions[row]), int(self._rooms[row]))
            assert said == (sequence.tokens[-1], sequence.num_computed, num_slots * self._slot_tokens), f"row {row}"
            assert self._slots[row, :num_slots].tolist() == list(sequence.slots), f"row {row} has other slots"
            assert not self._slots[row, num_slots:].any(), f"row {row} has slots too many"

    def _lay_slots(self, row: int, sequence: Sequence) -> None:
        num_slots = len(sequence.slots)
        while num_slots > self._slots.shape[1]:
            self._slots = np.concatenate([self._slots, np.zeros_like(self._slots)], axis=1)
        self._slots[row, :num_slots] = sequence.slots
        self._slots[row, num_slots:] = 0
        self._rooms[row] = num_slots * self._slot_tokens
