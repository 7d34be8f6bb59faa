"""Requests in, tokens out, step by step. It owns the slot pool and every sequence; it has no thread and no lock."""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from contextlib import suppress
from itertools import count, repeat
from typing import TYPE_CHECKING

from trivet._native import Sampler
from trivet.base.dtypes import Array
from trivet.base.errors import RequestError, ResourceError
from trivet.framework.engine.batch import to_batch
from trivet.framework.engine.budget import Budget
from trivet.framework.engine.chunk import Chunk
from trivet.framework.engine.cost_model import CostModel, Work
from trivet.framework.engine.deadlines import Deadlines
from trivet.framework.engine.delta import Delta
from trivet.framework.engine.flight import Begun, Flight, Runway
from trivet.framework.engine.kv_counts import KvCounts
from trivet.framework.engine.kv_pool import kv_pool
from trivet.framework.engine.lanes import LaneName, Lanes
from trivet.framework.engine.observer import Load, NullObserver, Observer, finish_of
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.prefixes import Prefixes
from trivet.framework.engine.sampler import TokenLogprob, choose, to_draw
from trivet.framework.engine.scheduler import Scheduler
from trivet.framework.engine.sequence import FinishReason, Request, Sequence, new_request
from trivet.framework.engine.step_times import StepTimes
from trivet.framework.engine.targets import Targets, refusal
from trivet.framework.engine.text import StreamingTokenizer, TextOutput
from trivet.framework.engine.wait import Stay, first_token_wait_s
from trivet.framework.graph.plan import Plan
from trivet.framework.memory.file_tier import FileCounts
from trivet.framework.memory.reclaim import DEFAULT_RECLAIM, ReclaimName
from trivet.framework.memory.tiers import TierCounts, Tiers

if TYPE_CHECKING:  # imported by who asks for two lanes
    from trivet.framework.graph.side_by_side import SideBySide

_log = logging.getLogger(__name__)


class Engine:
    """Drives a plan. Call `step` while `has_work`; between steps, `add` and `abort` at will.

    `max_step_tokens` bounds the tokens of one step, so how long decodes wait for a prefill beside them; None takes
    what the plan is bound for. Without a tokenizer there is no text, no end-of-text token and no stop string. `tiers`
    keep what the KV pool cannot; `close` closes them. `costs` predicts every step and learns from it; `targets` that
    are times need it. `reclaim` says what the pool gives up first. With `lanes`, prefill runs on cores of its own as
    long as somebody decodes.
    """

    def __init__(
        self,
        plan: Plan,
        tokenizer: StreamingTokenizer | None,
        *,
        max_step_tokens: int | None = None,
        lanes: SideBySide | None = None,
        tiers: Tiers | None = None,
        costs: CostModel | None = None,
        targets: Targets = Targets(),  # noqa: B008, it is frozen
        reclaim: ReclaimName = DEFAULT_RECLAIM,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = plan.limits
        self._plan = plan
        self._tokenizer = tokenizer
        # A tokenizer's files may name ids that the model has no logits of: none of them is ever chosen.
        ids: frozenset[int] = frozenset() if tokenizer is None else tokenizer.eos_ids
        self._eos_ids = frozenset(i for i in ids if 0 <= i < plan.vocab_size)
        self._observer = NullObserver() if observer is None else observer
        self._clock = clock
        assert not targets.are_times or (costs is not None and costs.is_known), "a time is promised blindly"
        self._times = StepTimes(costs, self._observer, has_lanes=lanes is not None)
        self._targets = targets
        self._side_by_side = lanes
        self._flight: Flight | None = None
        self._runway = None if lanes is None else Runway(lanes.prefills, clock)
        self._pool = kv_pool(plan.num_slots, plan.slot_tokens, costs, reclaim)
        self._tiers = tiers
        max_tokens = limits.max_tokens if max_step_tokens is None else min(max_step_tokens, limits.max_tokens)
        self._prefixes = Prefixes(self._pool, tiers, clock, max_tokens)
        if (known := self._times.known("both")) is not None:  # the first prompt after a restart has most to read
            self._prefixes.took(max_tokens, known.predict(Work().plus(0, max_tokens)))
        self._budget = Budget(max_tokens, costs, targets.itl_s)
        max_running = min(limits.max_sequences, limits.max_rows)
        self._scheduler = Scheduler(self._pool, self._budget, max_running, self._prefixes)
        self._sequences: dict[str, list[Sequence]] = {}  # request → its choices that are not finished
        self._orders = count()
        self._deadlines = Deadlines()
        self._stay = Stay()

    @property
    def has_work(self) -> bool:
        return bool(self._sequences) or self._flight is not None

    @property
    def max_length(self) -> int:
        """The most tokens of one sequence, prompt and answer: the context, or what of the KV pool is not pinned where
        that is less."""
        num_slots = self._pool.num_slots - self._pool.num_to_pin
        return min(self._plan.limits.max_context, num_slots * self._pool.slot_tokens)

    def kv_counts(self) -> KvCounts:
        """What the KV cache found and moved since the start. Any thread may ask."""
        tiers, running = self._tiers, list(self._scheduler.running)
        files = None if tiers is None else tiers.files
        held = sum(len(sequence.slots) for sequence in running) * self._pool.slot_tokens
        stored = sum(sequence.num_computed for sequence in running)
        return KvCounts(
            prefixes=self._prefixes.counts,
            tiers=TierCounts() if tiers is None else tiers.counts,
            files=FileCounts() if files is None else files.counts,
            slot_bytes=0 if tiers is None else tiers.slot_bytes,
            files_bytes=0 if files is None else files.used_bytes,
            turns=self._scheduler.num_admissions,
            held_up=self._scheduler.num_held_up,
            fragmentation=1 - stored / held if held else 0.0,
            pinned=self._pool.num_pinned,
        )

    @property
    def tiers(self) -> Tiers | None:
        return self._tiers

    def holds(self, request_id: str) -> bool:
        """Is a choice of this request still in progress?"""
        return request_id in self._sequences

    def pin(self, prompt: Tokens[int], cache_salt: str = "") -> int:
        """Compute a prompt now, and keep it in the KV pool, and in files, for all that begin with it under the same
        salt; how many slots it fills. To be called with nothing in progress: it runs steps until it is computed.

        Raises RequestError as `validate` does, ResourceError when it fills no slot, the pinned would fill more than
        half of the pool, or computing it fails.
        """
        assert not self.has_work, "a prompt is pinned while others are served"
        request = new_request("pinned", prompt, SamplingParams(max_tokens=1, temperature=0), cache_salt)
        self.validate(request)
        links = self._prefixes.to_pin(array("i", prompt), cache_salt)
        self.add(request)
        deltas: list[Delta] = []
        while self.has_work:
            deltas += self.step()
        if any(delta.finish_reason == "error" for delta in deltas):
            raise ResourceError(f"{len(links)} slots to pin could not be computed", "the log has the reason")
        self._prefixes.pin(links)
        return len(links)

    def validate(self, request: Request) -> None:
        """Raise RequestError when the request could never be served. Reads constants only: any thread may ask."""
        vocab_size, max_context = self._plan.vocab_size, self._plan.limits.max_context
        request.check(vocab_size, max_context, self.max_length, has_tokenizer=self._tokenizer is not None)
        if request.params.min_tokens and len(self._stop_ids(request.params)) == vocab_size:
            raise RequestError("min_tokens leaves no token to choose: every one of the vocabulary stops",
                               "name fewer stop_token_ids", "min_tokens")  # fmt: skip

    def add(self, request: Request) -> None:
        """Join those who wait.

        Raises RequestError as `validate` does, or when the id is in use; OverloadedError when the engine is full.
        """
        self.validate(request)
        if self.holds(request.request_id):
            raise RequestError(f"request id {request.request_id} is in use, wanted a new one")
        self._check_capacity(request)
        params = request.params
        max_length = self.max_length
        if params.max_tokens is not None:
            max_length = min(max_length, len(request.prompt) + params.max_tokens)
        stop_ids = self._stop_ids(params)
        now = self._clock()
        sequences = [
            Sequence(
                request=request,
                index=index,
                order=next(self._orders),
                max_length=max_length,
                stop_ids=stop_ids,
                draw=to_draw(params, len(request.prompt), request.seed, index, stop_ids),
                text=None if self._tokenizer is None else TextOutput(self._tokenizer.stream(), params.stop),
                arrival_s=now,
            )
            for index in range(params.n)
        ]
        for sequence in sequences:
            self._prefixes.expect(sequence)
            self._scheduler.add(sequence)
        self._sequences[request.request_id] = sequences
        if request.terms.timeout_s is not None:
            self._deadlines.add(now + request.terms.timeout_s, sequences)
        self._report_load()

    def abort(self, request_id: str) -> list[Delta]:
        """Free the request's slots now; the last deltas of its choices. Nothing happens when it is not here."""
        deltas = self._end(self._sequences.get(request_id, []), "abort")
        self._settle()
        return deltas

    def abort_all(self) -> list[Delta]:
        return [delta for request_id in list(self._sequences) for delta in self.abort(request_id)]

    def step(self) -> list[Delta]:
        """Compute one step; what it added, in arrival order of decodes, then prefills.

        With two lanes, prefill that stands beside decodes takes off, and lands in a later step: when it is done, when
        only its slots are left to go on, or when there is nothing else to compute.
        When the plan fails, everything running finishes with "error" and what waits is tried in the next step.
        """
        start = self._clock()
        deltas = self._end(self._deadlines.overdue(start), "timeout")
        if self._flight is not None and (self._flight.landed.done() or self._scheduler.is_short):
            self._land(self._flight, deltas)
        num_preemptions = self._scheduler.num_preemptions
        step = self._schedule(start)
        num_preemptions = self._scheduler.num_preemptions - num_preemptions
        if step.is_empty:
            if self._flight is not None:
                self._land(self._flight, deltas)
            self._settle()
            if not deltas:
                self._prefixes.wait()
            return deltas
        lane, plan = self._free_lane
        begun = self._begin(lane, step, start)
        try:
            logits = plan.run(to_batch(self._scheduler.decodes, step.prefills), begun.gates)
            self._take_all(begun, step.prefills, plan.sampler, logits, deltas)
            has_failed = False
        except Exception:
            self._fail(deltas)
            has_failed = True
        self._ran(begun, self._clock(), num_preemptions, has_failed=has_failed)
        self._settle()
        return deltas

    def close(self) -> None:
        """End what is in progress, bring what the tiers keep to disk, give their memory back."""
        self.abort_all()
        if self._flight is not None:
            self._land(self._flight, [])
        if self._runway is not None:
            self._runway.close()
        if self._tiers is not None:
            self._tiers.close()
            self._tiers = None

    def check(self) -> None:
        """The line is in order, no slot is lost or doubled; with no work, the pool is whole."""
        self._scheduler.check()
        num_unheld = self._pool.num_free + self._pool.num_pinned
        assert self.has_work or num_unheld == self._pool.num_slots, "idle, and a slot is held"

    def _stop_ids(self, params: SamplingParams) -> frozenset[int]:
        """The tokens that end an answer."""
        return frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos_ids)

    def _check_capacity(self, request: Request) -> None:
        """Raise OverloadedError when the request would have to wait too long, or too many wait already."""
        num_waiting, timeout_s = len(self._scheduler.waiting), request.terms.timeout_s
        wait_s = None
        known, beside = self._times.known("prefill"), Work()
        if known is None:
            known, beside = self._times.known("both"), self._scheduler.decodes.work()
        if known is not None and (self._targets.ttft_s, timeout_s) != (None, None):
            wait_s = first_token_wait_s(
                self._scheduler, self._budget, known, self._stay, len(request.prompt), request.params.n, beside
            )
        refused = refusal(self._targets, num_waiting, request.params.n, wait_s, timeout_s)
        if refused is not None:
            reason, error = refused
            self._observer.refused(reason)
            raise error

    def _end(self, choices: list[Sequence], reason: FinishReason) -> list[Delta]:
        return [self._finish(sequence, reason) for sequence in list(choices)]

    @property
    def _free_lane(self) -> tuple[LaneName, Plan]:
        """What this thread may run: everything, or beside a step of prefill decodes on the cores that are left."""
        if self._flight is None:
            return "both", self._plan
        assert self._side_by_side is not None
        return "decode", self._side_by_side.decodes

    def _schedule(self, now: float) -> Lanes:
        """What runs next on this thread. Prefill that may run beside it has taken off."""
        scheduler, runway = self._scheduler, self._runway
        if runway is None:
            return scheduler.schedule()
        decodes = scheduler.schedule_decodes()
        if self._flight is not None:
            return Lanes(decodes, [])
        step = Lanes(decodes, scheduler.schedule_prefills(Work()))
        if not decodes or not step.prefills:
            return step
        scheduler.take_off(step.prefills)
        self._flight = runway.take_off(self._begin("prefill", Lanes([], step.prefills), now))
        return Lanes(decodes, [])

    def _begin(self, lane: LaneName, step: Lanes, start_s: float) -> Begun:
        for sequence, _ in step.prefills:
            if sequence.scheduled_s is None:
                sequence.scheduled_s = start_s
        decodes = self._scheduler.decodes.work() if step.decodes else Work()
        return self._times.begin(lane, step, decodes, self._prefixes.gates(step.prefills), start_s)

    def _ran(self, begun: Begun, end_s: float, num_preemptions: int, *, has_failed: bool = False) -> None:
        seconds = self._times.ran(begun, end_s, num_preemptions, has_failed=has_failed)
        self._prefixes.took(begun.step.num_tokens, seconds)

    def _land(self, flight: Flight, deltas: list[Delta]) -> None:
        """Wait for the step that flies, and take what it made."""
        assert self._runway is not None
        try:
            landed = flight.landed.result()
            self._flight = None
            self._ran(flight.begun, landed.end_s, num_preemptions=0)
            here = self._scheduler.landed()
            self._take_all(flight.begun, here, self._runway.sampler, landed.logits, deltas)
        except Exception:
            self._fail(deltas)

    def _fail(self, deltas: list[Delta]) -> None:
        """A plan has failed, or what took its logits. What flies is waited for, since it writes to slots."""
        _log.exception("event=step_failed sequences=%d", len(self._scheduler.running))
        if self._flight is not None:
            with suppress(Exception):
                self._flight.landed.result()
            self._flight = None
            self._scheduler.landed()
        deltas += [self._finish(sequence, "error") for sequence in list(self._scheduler.running)]

    def _take_all(self, begun: Begun, here: list[Chunk], sampler: Sampler, logits: Array, deltas: list[Delta]) -> None:
        """Choose a token from each row of logits. `here`: the prefills whose sequences have not ended meanwhile."""
        step = begun.step
        if begun.gates or len(here) < len(step.prefills):
            step, logits = self._what_came(step, here, logits)
        due = self._scheduler.computed(step)
        chosen = choose(sampler, logits, due)
        self._scheduler.chose(step, due, chosen.tokens)
        self._time_tokens(due)
        # None for those that chose nothing. What follows is done for every token that is served: it is kept short.
        token_ids: list[int | None] = chosen.tokens.tolist()
        for row in chosen.unfit:
            token_ids[row] = None
        logprobs = [chosen.logprobs.get(row) for row in range(len(due))] if chosen.logprobs else repeat(None)
        deltas += map(self._take, due, token_ids, logprobs)

    def _what_came(self, step: Lanes, here: list[Chunk], logits: Array) -> tuple[Lanes, Array]:
        """The step and its rows of logits without those that ended, or whose prefix did not come, while it ran."""
        with_row = [sequence for sequence, num_tokens in step.prefills if sequence.num_pending == num_tokens]
        prefills = [chunk for chunk in here if self._prefixes.came(chunk.sequence)]
        kept = {id(chunk.sequence) for chunk in prefills}
        rows = [*[True] * len(step.decodes), *(id(sequence) in kept for sequence in with_row)]
        return Lanes(step.decodes, prefills), logits[rows]

    def _take(self, sequence: Sequence, token_id: int | None, logprob: TokenLogprob | None) -> Delta:
        """Find out whether the token that was chosen is the last, and what text it adds."""
        if token_id is None:
            return self._take_nothing(sequence)
        text, stop = "", None
        logprobs = None if logprob is None else (logprob,)
        output, length = sequence.text, len(sequence.tokens)
        reason: FinishReason | None = None
        if token_id in sequence.stop_ids:
            reason = "stop"
        elif output is not None:
            text, stop = output.push(token_id, length - sequence.num_prompt > sequence.request.params.min_tokens)
        if reason is None and stop is None:
            if length < sequence.max_length:
                num_prompt = sequence.num_prompt
                return Delta(
                    sequence.request.request_id, sequence.index, (token_id,), text, logprobs, None, None,
                    num_prompt, length - num_prompt,
                )  # fmt: skip
            reason = "length"
        if reason is not None and output is not None:
            rest, stop = output.finish()
            text += rest
        if stop is not None:
            reason = "stop"
        assert reason is not None
        stop_reason = token_id if token_id in sequence.stop_ids else stop
        return self._finish(sequence, reason, (token_id,), text, logprobs, stop_reason)

    def _take_nothing(self, sequence: Sequence) -> Delta:
        """No token could be chosen: what stands in for it goes."""
        _log.error("event=logits_not_finite request=%s", sequence.request.request_id)
        sequence.tokens.pop()
        return self._finish(sequence, "error")

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        token_ids: tuple[int, ...] = (),
        text: str = "",
        logprobs: tuple[TokenLogprob, ...] | None = None,
        stop_reason: int | str | None = None,
    ) -> Delta:
        self._prefixes.leave(sequence, is_in_doubt=reason == "error")
        self._scheduler.remove(sequence)
        request_id = sequence.request.request_id
        self._sequences[request_id].remove(sequence)
        if not self._sequences[request_id]:
            del self._sequences[request_id]
        now = self._clock()
        if sequence.scheduled_s is not None:
            self._stay.note(now - sequence.scheduled_s)
        self._observer.finish(finish_of(sequence, reason, now))
        return Delta(
            request_id, sequence.index, token_ids, text, logprobs, reason, stop_reason,
            sequence.num_prompt, sequence.num_generated,
        )  # fmt: skip

    def _time_tokens(self, sequences: list[Sequence]) -> None:
        now = self._clock()
        gaps_s = []
        for sequence in sequences:
            if sequence.last_token_s is None:
                sequence.first_token_s = now
                self._observer.first_token(now - sequence.arrival_s, sequence.num_prompt)
            else:
                gaps_s.append(now - sequence.last_token_s)
            sequence.last_token_s = now
        self._observer.tokens(gaps_s)

    def _settle(self) -> None:
        self._report_load()
        if not self.has_work:
            self.check()

    def _report_load(self) -> None:
        self._observer.load(Load(len(self._scheduler.running), len(self._scheduler.waiting), self._pool.usage))
