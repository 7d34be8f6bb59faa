"""How long a request that arrives now would wait for its first token: for the prefill before it, and for a place."""

from __future__ import annotations

from trivet.framework.engine.budget import Budget
from trivet.framework.engine.cost_model import CostModel, Work
from trivet.framework.engine.scheduler import Scheduler

_GAIN = 0.1  # of the newest sequence in the average


class Stay:
    """How long a sequence runs, from its turn to its end, averaged."""

    def __init__(self) -> None:
        self.seconds: float | None = None  # None until one has ended

    def note(self, seconds: float) -> None:
        self.seconds = seconds if self.seconds is None else self.seconds + _GAIN * (seconds - self.seconds)


def first_token_wait_s(
    scheduler: Scheduler, budget: Budget, costs: CostModel, stay: Stay, num_prompt: int, num_new: int, beside: Work
) -> float:
    """Seconds until `num_new` sequences of `num_prompt` tokens each have their first token, where steps of prefill
    have `beside` in them too, and cost so much.

    As though everyone who waits were served before it: with several tenants it may be sooner.
    """
    pending = [sequence for sequence in scheduler.running if sequence.row is None]
    num_tokens: int = sum(sequence.num_pending for sequence in (*pending, *scheduler.waiting)) + num_new * num_prompt
    prefill_s = num_tokens * _seconds_per_token(beside, budget, costs)
    num_without_place = len(scheduler.running) + len(scheduler.waiting) + num_new - scheduler.max_running
    place_s = max(0, num_without_place) * (stay.seconds or 0.0) / scheduler.max_running
    return max(prefill_s, place_s)


def _seconds_per_token(decodes: Work, budget: Budget, costs: CostModel) -> float:
    """Of prefill beside these decodes, in steps as full as they may be."""
    room = budget.max_tokens - decodes.num_tokens
    if room <= 0:
        return costs.predict(decodes)
    limit_s = budget.limit_s(decodes)
    if limit_s is not None:
        room = max(1, costs.most_tokens(decodes, 0, room, limit_s))
    return costs.predict(decodes.plus(0, room)) / room
