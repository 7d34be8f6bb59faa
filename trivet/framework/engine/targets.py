"""What the service promises, and why a request that would break the promise is refused instead of kept waiting."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from trivet.base.errors import OverloadedError

RefusalReason = Literal["queue", "ttft"]

MAX_RETRY_S = 60  # a prediction further out is a guess


@dataclass(frozen=True)
class Targets:
    """None promises nothing."""

    itl_s: float | None = None  # the predicted time of a step, so of the gap between two tokens
    ttft_s: float | None = None  # the predicted time from arrival to the first token
    max_waiting: int | None = None  # sequences that wait for their turn

    @property
    def are_times(self) -> bool:
        """Does any of them have to be predicted?"""
        return self.itl_s is not None or self.ttft_s is not None


def refusal(
    targets: Targets, num_waiting: int, num_new: int, wait_s: float | None, timeout_s: float | None
) -> tuple[RefusalReason, OverloadedError] | None:
    """Why `num_new` more sequences are not taken; None when they are.

    `wait_s` is the predicted time to their first token, None if nothing is known; `timeout_s` is what the request
    itself gives. With nobody waiting a request is always taken: there is nothing better to wait for.
    """
    if num_waiting == 0:
        return None
    if targets.max_waiting is not None and num_waiting + num_new > targets.max_waiting:
        message = (
            f"the engine is full: {num_waiting} sequences wait, {num_new} more would pass the {targets.max_waiting} "
            "of --max-waiting"
        )
        return "queue", OverloadedError(message, "retry later", _retry_s(wait_s))
    limits = [limit for limit in (targets.ttft_s, timeout_s) if limit is not None]
    if wait_s is not None and limits and wait_s > min(limits):
        message = f"the engine is full: the first token is predicted after {wait_s:.1f} s, wanted {min(limits):g} s"
        return "ttft", OverloadedError(message, "retry later", _retry_s(wait_s - min(limits)))
    return None


def _retry_s(seconds: float | None) -> int:
    return 1 if seconds is None else min(MAX_RETRY_S, max(1, ceil(seconds)))
