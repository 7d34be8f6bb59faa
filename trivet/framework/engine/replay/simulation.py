"""Arrivals through the real scheduler, the real slot pool and the real tiers; only the device is a clock that the cost
model moves, and the tiers' stores are bandwidths."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Arrivals
from dataclasses import dataclass

import numpy as np

from trivet.framework.engine.budget import Budget
from trivet.framework.engine.cost_model import CostModel, Work, work_of
from trivet.framework.engine.lanes import Lanes
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.prefixes import Prefixes
from trivet.framework.engine.replay.clock import Clock
from trivet.framework.engine.replay.spread import spread
from trivet.framework.engine.replay.timed_stores import Behind
from trivet.framework.engine.replay.timed_tiers import TimedTiers
from trivet.framework.engine.replay.trace import Arrival
from trivet.framework.engine.sampler import to_draw
from trivet.framework.engine.scheduler import Scheduler
from trivet.framework.engine.sequence import Request, Sequence
from trivet.framework.engine.targets import Targets, refusal
from trivet.framework.engine.wait import Stay, first_token_wait_s
from trivet.framework.memory.slots import SlotPool

_PARAMS = SamplingParams()
_ANSWER = 1 << 30  # tokens from here on are one request's own
_DRAW = to_draw(_PARAMS, 1, seed=0, choice=0, stop_ids=())  # nothing is chosen here: answers have the trace's lengths


@dataclass(frozen=True)
class Served:
    """What became of a trace. Times are simulated seconds; a share or a quantile of nothing is 0."""

    num_requests: int
    num_finished: int
    num_refused: int
    num_too_long: int  # for the context or the pool: refused whatever the load
    num_preemptions: int
    num_steps: int
    duration_s: float
    ttft_s: dict[str, float]  # "p50", "p90", "p99", "sd"
    itl_s: dict[str, float]
    goodput: float  # finished requests a second whose first token and mean gap met the targets
    tokens_per_s: float  # of answers
    allocation_success: float  # requests that never waited for slots, nor gave them back, of those that ran
    internal_fragmentation: float  # of the slots held, what no token is in, averaged over time
    usage: float  # of the pool, averaged over time
    hit_rate: float  # of the tokens of prompts, those that were found in the pool
    host_hit_rate: float  # in host memory
    files_hit_rate: float
    saved: float  # of the seconds that computing prompts takes, those that all this spared
    read_s: float  # what reading files took
    stalled_s: float  # waited for it: by the next in line, up to the end of a step of others, and in steps


class Simulation:
    """One run. The context and the pool bound a sequence as they do in the engine; `behind` the pool are tiers, if
    given."""

    def __init__(
        self, pool: SlotPool, costs: CostModel, targets: Targets, max_context: int, max_step_tokens: int,
        max_running: int, behind: Behind | None = None,
    ) -> None:  # fmt: skip
        self._pool = pool
        self._costs = costs
        self._targets = targets
        self._max_length = min(max_context, pool.num_slots * pool.slot_tokens)
        self._budget = Budget(max_step_tokens, costs, targets.itl_s)
        self._clock = Clock()
        self._tiers = None if behind is None else TimedTiers(behind, self._clock)
        self._prefixes = Prefixes(pool, self._tiers, self._clock, max_step_tokens)
        self._prefixes.took(max_step_tokens, costs.predict(Work().plus(0, max_step_tokens)))
        self._scheduler = Scheduler(pool, self._budget, max_running, self._prefixes)
        self._stay = Stay()
        self._ttft_s, self._itl_s = array("d"), array("d")
        self._stalled: set[int] = set()  # orders of those that waited for slots, or gave them back
        self._num_started = self._num_finished = self._num_good = self._num_refused = self._num_too_long = 0
        self._num_steps = self._num_tokens = 0
        self._asked_s = self._spared_s = 0.0  # of computing prompts
        self._stalled_s = 0.0  # in steps
        self._held_s = self._empty_s = self._pool_s = (
            0.0  # tokens of held slots, of their empty ends, of all; times seconds
        )

    def run(self, arrivals: Arrivals[Arrival]) -> Served:
        """Everything from the first arrival to the last answer."""
        left = list(reversed(arrivals))
        order = 0
        while left or self._scheduler.running or len(self._scheduler.waiting):
            if self._tiers is not None:
                self._tiers.advance()
            while left and left[-1].at_s <= self._clock():
                self._arrive(left.pop(), order)
                order += 1
            if self._scheduler.running or len(self._scheduler.waiting):
                self._step()
            elif left:
                self._clock.now_s = left[-1].at_s
        self._scheduler.check()
        assert self._pool.num_free == self._pool.num_slots, "all have ended, and a slot is held"
        served = self._served(len(arrivals))
        if self._tiers is not None:
            self._tiers.close()  # which checks that nothing is pinned
        return served

    def _arrive(self, arrival: Arrival, order: int) -> None:
        if arrival.num_prompt + arrival.num_answer > self._max_length:
            self._num_too_long += 1
            return
        wait_s = None
        if self._targets.ttft_s is not None:
            wait_s = first_token_wait_s(
                self._scheduler, self._budget, self._costs, self._stay, arrival.num_prompt, 1,
                self._scheduler.decodes.work(),
            )  # fmt: skip
        if refusal(self._targets, len(self._scheduler.waiting), 1, wait_s, None) is not None:
            self._num_refused += 1
            return
        request = Request(str(order), _tokens(arrival, order), _PARAMS, 0)
        length = arrival.num_prompt + arrival.num_answer
        sequence = Sequence(request, 0, order, length, frozenset(), _DRAW, None, arrival.at_s)
        self._prefixes.expect(sequence)
        self._scheduler.add(sequence)

    def _step(self) -> None:
        """Or a wait, where nobody runs and whoever is next waits for its prefix."""
        scheduler = self._scheduler
        held_up, preempted = scheduler.num_held_up, scheduler.num_preemptions
        step = scheduler.schedule()
        if scheduler.num_held_up > held_up and (first := scheduler.waiting.first()) is not None:
            self._stalled.add(first.order)
        if scheduler.num_preemptions > preempted:
            self._stalled.update(each.order for each in scheduler.waiting if each.place is not None)
        if step.is_empty:
            assert self._tiers is not None, "nobody runs, and nothing is waited for"
            self._prefixes.wait()
            return
        step = self._run(step)
        due = scheduler.computed(step)
        scheduler.chose(step, due, np.array([_ANSWER + sequence.order for sequence in due], np.int32))
        for sequence in due:
            self._answered(sequence)

    def _run(self, step: Lanes) -> Lanes:
        """Let the time of the step pass. Without those whose prefix did not come while it did."""
        seconds = self._costs.predict(work_of(step.prefills, self._scheduler.decodes.work()))
        stalled_s, gates = 0.0, self._prefixes.gates(step.prefills)
        if self._tiers is not None:
            stalled_s = self._tiers.stall_s(gates, seconds)
        self._watch_pool(seconds + stalled_s)
        for sequence, _ in step.prefills:
            if sequence.scheduled_s is None:
                sequence.scheduled_s = self._clock()
                self._num_started += 1
                self._asked_s += self._costs.prefill_s(0, sequence.num_prompt)
                self._spared_s += self._costs.prefill_s(0, sequence.num_computed)
        self._clock.now_s += seconds + stalled_s
        self._stalled_s += stalled_s
        self._num_steps += 1
        self._prefixes.took(step.num_tokens, seconds)
        if not gates:
            return step
        return Lanes(step.decodes, [chunk for chunk in step.prefills if self._prefixes.came(chunk.sequence)])

    def _answered(self, sequence: Sequence) -> None:
        now = self._clock()
        self._num_tokens += 1
        if sequence.last_token_s is None:
            sequence.first_token_s = now
            self._ttft_s.append(now - sequence.arrival_s)
        else:
            self._itl_s.append(now - sequence.last_token_s)
        sequence.last_token_s = now
        if len(sequence.tokens) == sequence.max_length:
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        self._prefixes.leave(sequence)
        self._scheduler.remove(sequence)
        self._num_finished += 1
        now = self._clock()
        assert sequence.first_token_s is not None and sequence.scheduled_s is not None
        self._stay.note(now - sequence.scheduled_s)
        gap_s = (now - sequence.first_token_s) / max(1, sequence.num_generated - 1)
        limits = ((sequence.first_token_s - sequence.arrival_s, self._targets.ttft_s), (gap_s, self._targets.itl_s))
        self._num_good += all(limit is None or seconds <= limit for seconds, limit in limits)

    def _watch_pool(self, seconds: float) -> None:
        pool = self._pool
        self._held_s += (pool.num_slots - pool.num_free) * pool.slot_tokens * seconds
        runners = self._scheduler.running
        self._empty_s += sum(len(each.slots) * pool.slot_tokens - len(each.tokens) for each in runners) * seconds
        self._pool_s += pool.num_slots * pool.slot_tokens * seconds

    def _served(self, num_requests: int) -> Served:
        duration_s, counts = max(self._clock(), 1e-9), self._prefixes.counts
        return Served(
            num_requests=num_requests,
            num_finished=self._num_finished,
            num_refused=self._num_refused,
            num_too_long=self._num_too_long,
            num_preemptions=self._scheduler.num_preemptions,
            num_steps=self._num_steps,
            duration_s=self._clock(),
            ttft_s=spread(self._ttft_s),
            itl_s=spread(self._itl_s),
            goodput=self._num_good / duration_s,
            tokens_per_s=self._num_tokens / duration_s,
            allocation_success=1 - len(self._stalled) / max(1, self._num_started),
            internal_fragmentation=self._empty_s / self._held_s if self._held_s else 0.0,
            usage=self._held_s / self._pool_s if self._pool_s else 0.0,
            hit_rate=counts.pool / max(1, counts.asked),
            host_hit_rate=counts.host / max(1, counts.asked),
            files_hit_rate=counts.files / max(1, counts.asked),
            saved=self._spared_s / self._asked_s if self._asked_s else 0.0,
            read_s=0.0 if self._tiers is None else self._tiers.read_s,
            stalled_s=counts.stalled_s + self._stalled_s,
        )


def _tokens(arrival: Arrival, order: int) -> tuple[int, ...]:
    """A prompt with as much in common with others as the trace says: equal blocks are equal tokens."""
    shared = tuple(block for block in arrival.blocks for _ in range(arrival.block_tokens))[: arrival.num_prompt]
    return shared + (_ANSWER + order,) * (arrival.num_prompt - len(shared))
