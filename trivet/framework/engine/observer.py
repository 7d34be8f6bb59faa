"""What the engine tells whoever watches it. It knows no metrics library; it calls these, and they return fast."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Protocol

from trivet.framework.engine.lanes import LaneName
from trivet.framework.engine.sequence import FinishReason, Sequence
from trivet.framework.engine.targets import RefusalReason


@dataclass(frozen=True)
class Load:
    """How full the engine is, after anything that changed it."""

    num_running: int
    num_waiting: int
    kv_usage: float  # 0 to 1


@dataclass(frozen=True)
class Step:
    """A step that ran."""

    lane: LaneName
    num_tokens: int  # computed in it
    num_preemptions: int
    seconds: float  # from choosing what runs to the last token taken
    predicted_s: float | None  # before it ran; None where nothing predicts


@dataclass(frozen=True)
class Finish:
    """A sequence that finished. A time is None when the sequence never came so far."""

    reason: FinishReason
    num_prompt_tokens: int
    num_generated_tokens: int
    total_s: float  # since arrival
    queue_s: float | None  # arrival to first step
    prefill_s: float | None  # first step to first token
    decode_s: float | None  # first token to last


class Observer(Protocol):
    def load(self, load: Load) -> None: ...

    def step(self, step: Step) -> None: ...

    def first_token(self, seconds: float, num_prompt_tokens: int) -> None:
        """A sequence's first token, `seconds` after it arrived."""
        ...

    def tokens(self, gaps_s: Several[float]) -> None:
        """Later tokens, all those of a step, each so long after the one before."""
        ...

    def finish(self, finish: Finish) -> None: ...

    def refused(self, reason: RefusalReason) -> None:
        """A request that was not taken, because the engine is full."""
        ...


class NullObserver:
    """Watches nothing."""

    def load(self, load: Load) -> None:
        return

    def step(self, step: Step) -> None:
        return

    def first_token(self, seconds: float, num_prompt_tokens: int) -> None:
        return

    def tokens(self, gaps_s: Several[float]) -> None:
        return

    def finish(self, finish: Finish) -> None:
        return

    def refused(self, reason: RefusalReason) -> None:
        return


def finish_of(sequence: Sequence, reason: FinishReason, now: float) -> Finish:
    """Of a sequence that ends now."""
    return Finish(
        reason=reason,
        num_prompt_tokens=sequence.num_prompt,
        num_generated_tokens=sequence.num_generated,
        total_s=now - sequence.arrival_s,
        queue_s=_between(sequence.arrival_s, sequence.scheduled_s),
        prefill_s=_between(sequence.scheduled_s, sequence.first_token_s),
        decode_s=_between(sequence.first_token_s, sequence.last_token_s),
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
