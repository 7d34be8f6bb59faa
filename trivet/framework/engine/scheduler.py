"""Who runs next. A sequence that is running holds slots; one that is waiting holds none.

Whose turn it is, the queue says. Those whose turn has come stand in one line, cut in two: the front runs, the rest
stepped back from running. The newest runner steps back when slots run out, and nobody's turn comes while one who
stepped back waits. So the oldest is never taken back and moves on at every step: nothing starves, nothing deadlocks.
"""

from __future__ import annotations

from itertools import count, pairwise

from trivet.base.dtypes import Array
from trivet.framework.engine.budget import Budget
from trivet.framework.engine.chunk import Chunk
from trivet.framework.engine.cost_model import Work
from trivet.framework.engine.decodes import Decodes
from trivet.framework.engine.fair_queue import FairQueue
from trivet.framework.engine.lanes import Lanes
from trivet.framework.engine.prefixes import Prefixes
from trivet.framework.engine.sequence import Sequence
from trivet.framework.memory.slots import SlotPool


class Scheduler:
    """Continuous batching with chunked prefill over a slot pool.

    A step has what `budget` allows of at most `max_running` sequences: first one token of every running sequence
    that lacks only one (a decode), then prefill, the oldest first.
    """

    def __init__(self, pool: SlotPool, budget: Budget, max_running: int, prefixes: Prefixes | None = None) -> None:
        assert max_running > 0, "a step needs room for a sequence"
        self.running: list[Sequence] = []  # by place
        self.waiting = FairQueue()
        self.num_preemptions = 0
        self.num_admissions = 0  # turns taken, those after a preemption included
        self.num_held_up = 0  # turns that had to wait for slots
        self._pool = pool
        self._prefixes = Prefixes(pool) if prefixes is None else prefixes
        self._budget = budget
        # No more sequences than tokens: every decode has its place in every step, and prefill a token at least.
        self.max_running = min(max_running, budget.max_tokens)
        self.decodes = Decodes(self.max_running, pool.slot_tokens)  # of the running, those that lack one token
        self._flying: list[Chunk] = []  # a step of prefill that runs while others are scheduled
        self._gone: list[Sequence] = []  # of it, those that have ended: what runs still writes to their slots
        self._places = count()
        self._held_up: Sequence | None = None  # whose turn it is, and who has to wait

    def add(self, sequence: Sequence) -> None:
        """Join those who wait. The caller has checked that the pool could hold the sequence alone."""
        self.waiting.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Leave, finished or aborted; its slots are free at once, or when the step has landed that writes to them."""
        self.decodes.leave(sequence)
        if sequence.slots:
            self.running.remove(sequence)
            if any(chunk.sequence is sequence for chunk in self._flying):
                self._gone.append(sequence)
            else:
                self._pool.release(sequence.slots)
        self.waiting.leave(sequence)

    def schedule(self) -> Lanes:
        """The next step of both lanes; its slots are held from here on. Empty only when nobody runs, and nobody waits
        or the next waits for its prefix."""
        decodes = self.schedule_decodes()
        return Lanes(decodes, self.schedule_prefills(self.decodes.work()))

    def schedule_decodes(self) -> list[Sequence]:
        """A token of every running sequence that lacks only one, once slots were found for all. Who is taken back for
        them must not be in a step that flies: see `is_short`."""
        self._make_room()
        return self.decodes.sequences.copy()

    def schedule_prefills(self, beside: Work) -> list[Chunk]:
        """As much prefill as the budget allows in a step that has this work beside it. Nothing must be flying."""
        assert not self._flying, "two steps of prefill at once"
        step = self._budget.begin(beside)
        prefills = []
        if len(self.decodes) < len(self.running):
            for sequence in self.running:
                if sequence.row is None and (num_tokens := step.take(sequence)):
                    prefills.append(Chunk(sequence, num_tokens))
        while step.has_room and self._can_admit():
            sequence = self._admit()
            if num_tokens := step.take(sequence):
                prefills.append(Chunk(sequence, num_tokens))
        return prefills

    @property
    def is_short(self) -> bool:
        """Would the next decodes have to take slots back from somebody?"""
        return len(self.decodes.without_room()) > self._pool.num_free

    def take_off(self, prefills: list[Chunk]) -> None:
        """These run from now on, while decodes are scheduled, until they have `landed`."""
        assert not self._flying, "two steps of prefill at once"
        self._flying = prefills

    def landed(self) -> list[Chunk]:
        """What flew has run. Of its chunks, those whose sequences are still here; the slots of the others are free."""
        flown, self._flying = self._flying, []
        gone, self._gone = self._gone, []
        for sequence in gone:
            self._pool.release(sequence.slots)
        return [chunk for chunk in flown if chunk.sequence not in gone]

    def computed(self, step: Lanes) -> list[Sequence]:
        """The step that was scheduled has run. Those whose next token is due, in the order of its rows of logits."""
        if step.decodes:
            for sequence in self.decodes.computed():
                self._prefixes.computed(sequence)
        due = step.decodes.copy()
        for sequence, num_tokens in step.prefills:
            sequence.num_computed += num_tokens
            self._prefixes.computed(sequence)
            if sequence.num_pending == 0:
                due.append(sequence)
        return due

    def chose(self, step: Lanes, due: list[Sequence], tokens: Array) -> None:
        """The next token of each that `computed` found due [int32, by row]: they decode from here on."""
        num_decodes = len(step.decodes)
        if num_decodes:
            self.decodes.chose(tokens[:num_decodes])
        for sequence, token_id in zip(due, tokens.tolist(), strict=True):
            sequence.tokens.append(token_id)
        for sequence in due[num_decodes:]:
            self.decodes.join(sequence)

    def check(self) -> None:
        """The line is in order and cut in two, and every slot is free, cold or held by runners."""
        self.waiting.check()
        places = [s.place for s in (*self.running, *self.waiting) if s.place is not None]
        assert all(a < b for a, b in pairwise(places)), "the line is out of order"
        assert all(sequence.slots for sequence in self.running), "a running sequence holds no slots"
        assert not any(sequence.slots for sequence in self.waiting), "a waiting sequence holds slots"
        assert self._flying or not self._gone, "one has gone, and its slots are still held"
        self.decodes.check()
        assert set(self.decodes.sequences) <= set(self.running), "one decodes that does not run"
        self._pool.check(sequence.slots for sequence in (*self.running, *self._gone))

    def _make_room(self) -> None:
        """A slot for the next token of every runner that has filled its last, the oldest first.

        Only decodes may lack one: the slots of a whole prompt were taken when its sequence was admitted.
        """
        for sequence in sorted(self.decodes.without_room(), key=_place):
            wanted = sequence.num_computed + 1
            while sequence.slots and not self._pool.fits(sequence.slots, wanted):
                self._preempt_newest()
            if sequence.slots:
                self._pool.grow(sequence.slots, wanted)
                self.decodes.grew(sequence)

    def _preempt_newest(self) -> None:
        """Take the newest runner's slots back; what is not found again of its tokens it will compute again."""
        sequence = self.running.pop()
        assert all(chunk.sequence is not sequence for chunk in self._flying), "a step that flies loses its slots"
        self.decodes.leave(sequence)
        self._prefixes.step_back(sequence)
        self._pool.release(sequence.slots)
        sequence.num_computed = sequence.num_named = 0
        self.waiting.push_back(sequence)
        self.num_preemptions += 1

    def _can_admit(self) -> bool:
        if len(self.running) >= self.max_running:
            return False
        sequence = self.waiting.first()
        if sequence is None:
            return False
        if self._prefixes.can_admit(sequence, is_alone=not self.running):
            return True
        if sequence is not self._held_up and not self._prefixes.is_waiting(sequence):
            self._held_up = sequence
            self.num_held_up += 1
        return False

    def _admit(self) -> Sequence:
        """The first in line runs. It takes the slots of all its tokens now, so a prefill once begun needs no more."""
        sequence = self.waiting.pop()
        if sequence.place is None:
            sequence.place = next(self._places)
        self._prefixes.admit(sequence)
        self.running.append(sequence)
        self.num_admissions += 1
        return sequence


def _place(sequence: Sequence) -> int:
    assert sequence.place is not None, "a runner has a place in the line"
    return sequence.place
