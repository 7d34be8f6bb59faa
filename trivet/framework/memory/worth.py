"""Is a prefix read from files sooner than it is computed again? Judged from what both were measured to take.

It knows no block and no sequence: numbers in, a judgement out.
"""

from __future__ import annotations

_WEIGHT = 0.2  # of the newest measurement in a running mean
_RETRY = 32  # after so many refusals one is read all the same: else a store that was slow once stays slow for ever
_UNMEASURED_S = 1.0  # how long a first read may take while nothing is known


class Rate:
    """Seconds for one unit, a running mean; None until measured."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def learn(self, seconds: float, num_units: int) -> None:
        each = seconds / num_units
        self.seconds = each if self.seconds is None else self.seconds + _WEIGHT * (each - self.seconds)


class Worth:
    """Load or compute: `block` is what reading one from files takes, `token` what prefill takes for one."""

    def __init__(self) -> None:
        self.block = Rate()
        self.token = Rate()
        self._num_refused = 0

    def patience_s(self, num_tokens: int) -> float:
        """How long it pays to wait for so many tokens: as long as computing them takes."""
        return _UNMEASURED_S if self.token.seconds is None else self.token.seconds * num_tokens

    def is_loading_sooner(self, num_blocks: int, num_tokens: int, num_queued: int) -> bool:
        """Reading `num_blocks` blocks of `num_tokens` tokens in all, behind `num_queued` that are being read already.

        Unknown counts as sooner: that is how it becomes known.
        """
        if self.block.seconds is None or self.token.seconds is None:
            return True
        if self.block.seconds * (num_queued + num_blocks) <= self.patience_s(num_tokens):
            self._num_refused = 0
            return True
        self._num_refused += 1
        return self._num_refused % _RETRY == 0
