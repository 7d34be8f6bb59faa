"""What of a sequence was computed before: found by the chain of its tokens in the pool, in host memory or in files.

It moves blocks for the scheduler and decides nothing of who runs. The last token of a sequence is always computed,
for its logits.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trivet._native import Gate
from trivet.base.errors import ResourceError
from trivet.framework.engine.chunk import Chunk
from trivet.framework.engine.sequence import Sequence
from trivet.framework.memory.chain import Chain, Identity, Link, digest
from trivet.framework.memory.host_tier import HostBlock
from trivet.framework.memory.slots import MAX_PINNED_SHARE, SlotPool
from trivet.framework.memory.tiers import Tiers

_WAIT_S = 0.02  # at most, for a file, with nothing to compute: messages to the engine are taken in between

NOBODY = Identity(digest(b"model"), digest(b"layout"))  # of blocks that never leave their pool


@dataclass
class PrefixCounts:
    """Tokens of admitted sequences since the start, and where they were found."""

    asked: int = 0  # all tokens that had to be in slots
    pool: int = 0
    host: int = 0
    files: int = 0
    stalled_s: float = 0.0  # time in which the next sequence waited for files, or a step for what came meanwhile
    arrived: int = 0  # prefixes of which blocks came from files while the step behind them ran
    failed: int = 0  # of which some did not: the step was thrown away


class Prefixes:
    """Finds prefixes in `pool`, and in `tiers` where there are any."""

    def __init__(
        self,
        pool: SlotPool,
        tiers: Tiers | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_step_tokens: int = 0,
    ) -> None:
        self.counts = PrefixCounts()
        self._pool = pool
        self._tiers = tiers
        self._clock = clock
        self._max_step_tokens = max_step_tokens
        self._identity = NOBODY if tiers is None else tiers.identity
        self._waiting: Sequence | None = None  # it would be admitted, but for a fetch
        self._waiting_since_s = 0.0
        self._arriving: Sequence | None = None  # it runs, and blocks of its prefix are still to come
        if tiers is not None:
            pool.on_reclaim = lambda slot, link: tiers.give_up(slot, link, pool.slot_tokens)

    def expect(self, sequence: Sequence) -> None:
        """It has arrived, or comes back, and will want its prefix: what is in files begins to move now."""
        sequence.is_expected = True
        if self._tiers is not None:
            links = self._reusable(sequence)
            beyond, slot_tokens = links[len(self._pool.find(links)) :], self._pool.slot_tokens
            num_after = len(sequence.tokens) - len(links) * slot_tokens
            sequence.fetch = self._tiers.fetch(beyond, slot_tokens, num_after, self._max_step_tokens)

    def can_admit(self, sequence: Sequence, *, is_alone: bool = False) -> bool:
        """Do its tokens fit the pool, what is found there counted once? And is there no more to wait for, but what may
        come while its first step runs? `is_alone`: nobody else is in that step."""
        if not self._pool.fits(self._pool.find(self._reusable(sequence)), len(sequence.tokens)):
            self._stop_waiting(sequence)  # it is slots that it waits for
            return False
        if not sequence.is_expected:  # it has stepped back; what was in the pool then may be in files alone by now
            self.expect(sequence)
        fetch = sequence.fetch
        if self._tiers is not None and fetch is not None and self._tiers.is_worth_waiting(fetch):
            # One at a time: another may have the same prefix, and finds it in the pool then.
            if self._arriving is None and self._tiers.is_hidden(fetch, is_alone=is_alone):
                return True
            if self._waiting is not sequence:
                self._waiting, self._waiting_since_s = sequence, self._clock()
            return False
        return True

    def is_waiting(self, sequence: Sequence) -> bool:
        """Was it for what it waits for from files that it was not admitted?"""
        return self._waiting is sequence

    def admit(self, sequence: Sequence) -> None:
        """Give it slots for all its tokens, the first of them with what was computed before. It has been asked.

        What its fetch has not read yet counts as computed: it comes while the next step of the sequence runs.
        """
        slot_tokens, held = self._pool.slot_tokens, sequence.slots
        links = self._reusable(sequence)
        found = self._pool.find(links)
        self._pool.share(held, found)
        # Taken before the pool grows: a slot that sinks may have another block evicted.
        taken = self._take(sequence, links[len(found) :])
        coming = self._reserve(sequence, links[len(found) + len(taken) :])
        self._pool.grow(held, len(sequence.tokens))
        sequence.num_named = len(found) + self._restore(sequence, taken, links[len(found) :], len(found))
        is_whole = sequence.num_named == len(found) + len(taken)
        sequence.num_computed = sequence.num_named * slot_tokens
        self.counts.asked += len(sequence.tokens)
        self.counts.pool += len(found) * slot_tokens
        self._stop_waiting(sequence)
        if not self._bring(sequence, coming, is_whole=is_whole):
            self._end_fetch(sequence)

    def gates(self, chunks: Iterable[Chunk]) -> list[Gate]:
        """What a step of these waits at, for blocks that are on their way."""
        if self._arriving is None:
            return []
        fetches = (chunk.sequence.fetch for chunk in chunks)
        return [fetch.arrival.gate for fetch in fetches if fetch is not None and fetch.arrival is not None]

    def came(self, sequence: Sequence) -> bool:
        """Its step has run: did all come that it was promised? Else what the step made of it is worth nothing, and what
        did not come is to be computed."""
        fetch = sequence.fetch
        if fetch is None or fetch.arrival is None:
            return True
        arrival, first, slot_tokens = fetch.arrival, sequence.num_named, self._pool.slot_tokens
        self.counts.stalled_s += arrival.gate.stalled_s
        has_come = not arrival.gate.has_failed
        if has_come:
            for block, slot in zip(arrival.blocks, arrival.slots, strict=True):
                self._pool.name(slot, block.link)
            sequence.num_named = first + len(arrival.slots)
            self.counts.files += len(arrival.slots) * slot_tokens
            self.counts.arrived += 1
        else:
            sequence.num_computed = first * slot_tokens
            self.counts.failed += 1
        self._end_fetch(sequence)
        return has_come

    def computed(self, sequence: Sequence) -> None:
        """A step has computed some of its tokens: the slots that are full now can be found."""
        num_full = sequence.num_computed // self._pool.slot_tokens
        if num_full == sequence.num_named:
            return
        links = self._chain(sequence).extend(sequence.tokens, self._pool.slot_tokens, num_full)
        for position in range(sequence.num_named, num_full):
            self._pool.name(sequence.slots[position], links[position])
            if self._tiers is not None and self._tiers.files is not None:
                self._tiers.sink(sequence.slots[position], links[position])
        sequence.num_named = num_full

    def took(self, num_tokens: int, seconds: float) -> None:
        """A step of so many tokens was measured; those of prefill say what computing a prefix again would take."""
        if self._tiers is not None and num_tokens >= self._pool.slot_tokens:
            self._tiers.worth.token.learn(seconds, num_tokens)

    def wait(self) -> None:
        """There is nothing to compute: wait a little for what the next sequence waits for."""
        if self._waiting is not None and self._waiting.fetch is not None:
            self._waiting.fetch.done.wait(_WAIT_S)

    def step_back(self, sequence: Sequence) -> None:
        """It gives its slots up: nothing comes to them any more."""
        self._end_fetch(sequence)
        sequence.is_expected = False

    def leave(self, sequence: Sequence, *, is_in_doubt: bool = False) -> None:
        """It ends. `is_in_doubt`: something failed, and what it computed is not to be found by others."""
        self._end_fetch(sequence)
        if is_in_doubt:
            self._pool.forget(sequence.slots)
            if self._tiers is not None:
                self._tiers.forget(self._chain(sequence).links[: sequence.num_named])

    def to_pin(self, tokens: array[int], cache_salt: str) -> list[Link]:
        """The blocks that these tokens fill, for `pin`.

        Raises ResourceError when it is none, or the pool would have too little left for others.
        """
        slot_tokens = self._pool.slot_tokens
        num_slots = len(tokens) // slot_tokens
        if num_slots == 0:
            raise ResourceError(f"{len(tokens)} tokens to pin fill no slot, wanted at least {slot_tokens}",
                                "leave them out: so few are computed in no time")  # fmt: skip
        links = Chain(self._identity, cache_salt).extend(tokens, slot_tokens, num_slots)
        if not self._pool.can_pin(links):
            raise ResourceError(
                f"{len(tokens)} tokens to pin take {num_slots} slots beside the {self._pool.num_to_pin} pinned, "
                f"wanted at most {MAX_PINNED_SHARE:.0%} of the {self._pool.num_slots} of the KV pool",
                "pin less, or raise --kv-memory",
            )
        return links

    def pin(self, links: list[Link]) -> None:
        """Keep these from now on, in the pool and in files."""
        self._pool.pin(links)
        if self._tiers is not None:
            self._tiers.pin(links)

    def _reusable(self, sequence: Sequence) -> list[Link]:
        """The blocks that it need not compute itself: all full ones before its last token."""
        num_blocks = (len(sequence.tokens) - 1) // self._pool.slot_tokens
        return self._chain(sequence).extend(sequence.tokens, self._pool.slot_tokens, num_blocks)

    def _chain(self, sequence: Sequence) -> Chain:
        if sequence.chain is None:
            sequence.chain = Chain(self._identity, sequence.request.cache_salt)
        return sequence.chain

    def _take(self, sequence: Sequence, links: list[Link]) -> list[HostBlock]:
        """Those in host memory that are to be copied back: what was fetched for it is, for that was weighed before."""
        if self._tiers is None:
            return []
        if sequence.fetch is not None:
            return self._tiers.take(links)
        return self._tiers.take_if_sooner(links, self._pool.slot_tokens)

    def _restore(self, sequence: Sequence, taken: list[HostBlock], links: list[Link], first: int) -> int:
        """Fill its slots from `first` on with the blocks taken; how many were, up to one that does not prove itself."""
        for i, block in enumerate(taken):
            assert self._tiers is not None
            is_from_files = block.is_from_files
            if not self._tiers.restore(block, sequence.slots[first + i]):
                self._tiers.let_go(taken[i + 1 :])
                return i
            self._pool.name(sequence.slots[first + i], links[i])
            if is_from_files:
                self.counts.files += self._pool.slot_tokens
            else:
                self.counts.host += self._pool.slot_tokens
        return len(taken)

    def _reserve(self, sequence: Sequence, links: list[Link]) -> list[HostBlock]:
        fetch = sequence.fetch
        if self._tiers is None or fetch is None or self._arriving is not None:
            return []
        return self._tiers.reserve(fetch, links) if self._tiers.is_worth_waiting(fetch) else []

    def _bring(self, sequence: Sequence, coming: list[HostBlock], *, is_whole: bool) -> bool:
        """Have them come to the slots behind those that are full, unless one of those is missing."""
        if not coming:
            return False
        assert self._tiers is not None and sequence.fetch is not None
        if not is_whole:
            self._tiers.let_go(coming)
            return False
        first = sequence.num_named
        self._tiers.bring(sequence.fetch, coming, sequence.slots[first : first + len(coming)], first)
        self._arriving = sequence
        sequence.num_computed += len(coming) * self._pool.slot_tokens
        return True

    def _stop_waiting(self, sequence: Sequence) -> None:
        if self._waiting is sequence:
            self.counts.stalled_s += self._clock() - self._waiting_since_s
            self._waiting = None

    def _end_fetch(self, sequence: Sequence) -> None:
        self._stop_waiting(sequence)
        if self._arriving is sequence:
            self._arriving = None
        if sequence.fetch is not None and self._tiers is not None:
            self._tiers.end(sequence.fetch)
            sequence.fetch = None
