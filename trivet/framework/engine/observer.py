"""What the engine tells whoever watches it. It knows no metrics library; it calls these, and they return fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trivet.framework.engine.sequence import FinishReason
from trivet.framework.engine.targets import RefusalReason


@dataclass(frozen=True)
class Load:
    """How full the engine is, after anything that changed it."""

    num_running: int
    num_waiting: int
    kv_usage: float  # 0 to 1


@dataclass(frozen=True)
class Step:
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

    def tokens(self, gaps_s: Sequence[float]) -> None:
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

    def tokens(self, gaps_s: Sequence[float]) -> None:
        return

    def finish(self, finish: Finish) -> None:
        return

    def refused(self, reason: RefusalReason) -> None:
        return
