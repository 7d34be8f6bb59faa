"""Who runs next. A sequence that is running holds slots; one that is waiting holds none.

Running and waiting are one line by arrival, cut in two: everyone running arrived before everyone waiting. So the
newest runner steps back to the front of the waiting when slots run out, the oldest is never taken back, and it moves
on at every step: nothing starves, nothing deadlocks.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import NamedTuple

from trivet.framework.engine.prefixes import Prefixes
from trivet.framework.engine.sequence import Sequence
from trivet.framework.memory.slots import SlotPool


class Chunk(NamedTuple):
    """The next `num_tokens` uncomputed tokens of a sequence, to run in one step."""

    sequence: Sequence
    num_tokens: int


class Scheduler:
    """Continuous batching with chunked prefill over a slot pool.

    A step has at most `max_step_tokens` tokens of at most `max_running` sequences: first one token of every running
    sequence that lacks only one (a decode), then prefill by arrival.
    """

    def __init__(
        self, pool: SlotPool, max_step_tokens: int, max_running: int, prefixes: Prefixes | None = None
    ) -> None:
        assert max_step_tokens > 0 and max_running > 0, "a step needs room for a token of a sequence"
        self.running: list[Sequence] = []  # by arrival
        self.waiting: deque[Sequence] = deque()  # by arrival
        self.num_preemptions = 0
        self._pool = pool
        self._prefixes = Prefixes(pool) if prefixes is None else prefixes
        self._max_step_tokens = max_step_tokens
        # No more sequences than tokens: every decode has its place in every step, and prefill a token at least.
        self._max_running = min(max_running, max_step_tokens)

    def add(self, sequence: Sequence) -> None:
        """Join the end of the line. The caller has checked that the pool could hold the sequence alone."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Leave the line, finished or aborted; its slots are free at once."""
        if sequence.slots:
            self.running.remove(sequence)
            self._pool.release(sequence.slots)
        else:
            self.waiting.remove(sequence)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step; their slots are held from here on. Empty only when nobody runs, and nobody
        waits or the next waits for its prefix."""
        self._make_room()
        chunks = [Chunk(sequence, 1) for sequence in self.running if sequence.num_pending == 1]
        budget = self._max_step_tokens - len(chunks)
        if len(chunks) < len(self.running):
            for sequence in self.running:
                if budget and sequence.num_pending > 1:
                    chunks.append(Chunk(sequence, min(budget, sequence.num_pending)))
                    budget -= chunks[-1].num_tokens
        while budget and self._can_admit():
            sequence = self._admit()
            chunks.append(Chunk(sequence, min(budget, sequence.num_pending)))
            budget -= chunks[-1].num_tokens
        return chunks

    def check(self) -> None:
        """The line is in order and cut in two, and every slot is free, cold or held by runners."""
        line = [*self.running, *self.waiting]
        assert all(a.order < b.order for a, b in pairwise(line)), "the line is out of order"
        assert all(sequence.slots for sequence in self.running), "a running sequence holds no slots"
        assert not any(sequence.slots for sequence in self.waiting), "a waiting sequence holds slots"
        self._pool.check(sequence.slots for sequence in self.running)

    def _make_room(self) -> None:
        """A slot for the next token of every runner that has filled its last, the oldest first."""
        slot_tokens = self._pool.slot_tokens
        position = 0
        while position < len(self.running):
            sequence = self.running[position]
            position += 1
            if sequence.num_computed < len(sequence.slots) * slot_tokens:
                continue
            wanted = sequence.num_computed + 1
            while not self._pool.fits(sequence.slots, wanted) and self._preempt_newest() is not sequence:
                pass
            if sequence.slots:
                self._pool.grow(sequence.slots, wanted)

    def _preempt_newest(self) -> Sequence:
        """Take the newest runner's slots back; what is not found again of its tokens it will compute again."""
        sequence = self.running.pop()
        self._pool.release(sequence.slots)
        sequence.num_computed = sequence.num_named = 0
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1
        return sequence

    def _can_admit(self) -> bool:
        has_place = bool(self.waiting) and len(self.running) < self._max_running
        return has_place and self._prefixes.can_admit(self.waiting[0])

    def _admit(self) -> Sequence:
        """The first in line runs. It takes the slots of all its tokens now, so a prefill once begun needs no more."""
        sequence = self.waiting.popleft()
        self._prefixes.admit(sequence)
        self.running.append(sequence)
        return sequence
