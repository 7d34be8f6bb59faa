"""Is a prefix sooner brought back than it is computed again? Judged from what both were measured to take.

It knows no block and no sequence: numbers in, a judgement out.
"""

from __future__ import annotations

_WEIGHT = 0.2  # of the newest measurement in a running mean
_RETRY = 32  # after so many refusals one is taken all the same: else a store that was slow once stays slow for ever
_UNMEASURED_S = 1.0  # how long a first read may take while nothing is known
_LATE = 2.0  # a read that has taken this many times what was expected is not waited for: its store has stalled


class Rate:
    """Seconds for one unit, a running mean; None until measured."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def learn(self, seconds: float, num_units: int) -> None:
        each = seconds / num_units
        self.seconds = each if self.seconds is None else self.seconds + _WEIGHT * (each - self.seconds)


class _Choice:
    """What pays is done, and what does not now and then all the same, or it would never be measured again."""

    def __init__(self) -> None:
        self._num_refused = 0

    def is_taken(self, pays: bool) -> bool:
        self._num_refused = 0 if pays else self._num_refused + 1
        return self._num_refused % _RETRY == 0


class Worth:
    """Swap, load or compute: `block` is what reading one from files takes, `sink` and `restore` what copying one from a
    slot to host memory and back takes, `token` what prefill takes for one."""

    def __init__(self) -> None:
        self.block = Rate()
        self.sink = Rate()
        self.restore = Rate()
        self.token = Rate()
        self._reads, self._sinks, self._restores = _Choice(), _Choice(), _Choice()

    def pays_to_sink(self, block_tokens: int, share: float | None) -> bool:
        """Does copying a block out take no longer than having it spares, where that share of them is wanted again?
        None is unknown, and counts as all."""
        spared_s = self._spared_s(block_tokens)
        wanted = 1.0 if share is None else share
        return self._sinks.is_taken(spared_s is None or (self.sink.seconds or 0.0) <= wanted * spared_s)

    def pays_to_restore(self, block_tokens: int) -> bool:
        """Is a block that lies in host memory copied back sooner than its tokens are computed again?"""
        spared_s = self._spared_s(block_tokens)
        return self._restores.is_taken(spared_s is None or spared_s >= 0)

    def patience_s(
        self, num_blocks: int, num_tokens: int, num_queued: int, num_beside: int = 0, num_pieces: int = 1
    ) -> float | None:
        """How long it pays to wait for `num_blocks` blocks of `num_tokens` tokens in all, behind `num_queued` that are
        being read already; None when computing the tokens is sooner. The step that computes `num_beside` tokens behind
        them hides a part of it, where blocks come in `num_pieces`.

        What is lost when the store stalls is what was waited and not hidden: at most the time that computing takes, and
        no more than twice what reading was expected to take. Unknown counts as sooner: that is how it becomes known.
        """
        if self.block.seconds is None or self.token.seconds is None:
            return _UNMEASURED_S if self.token.seconds is None else self.token.seconds * num_tokens
        read_s, compute_s = self.block.seconds * (num_queued + num_blocks), self.token.seconds * num_tokens
        waited_s = exposed_s(read_s, self.token.seconds * num_beside, num_pieces)
        pays = waited_s <= compute_s
        if not self._reads.is_taken(pays):
            return None
        if not pays:
            return compute_s
        return min(compute_s + (read_s - waited_s), _LATE * read_s)

    def is_hidden(self, num_blocks: int, num_beside: int) -> bool:
        """Are so many blocks read by the time that a step of `num_beside` tokens comes to need them, but for the first
        pieces? False while nothing is known."""
        if self.block.seconds is None or self.token.seconds is None:
            return False
        return self.block.seconds * num_blocks <= self.token.seconds * num_beside

    def _spared_s(self, block_tokens: int) -> float | None:
        """By a block copied back, of computing its tokens; None while nothing is known."""
        if self.token.seconds is None:
            return None
        return self.token.seconds * block_tokens - (self.restore.seconds or 0.0)


def exposed_s(read_s: float, step_s: float, num_pieces: int) -> float:
    """How much longer than `step_s` a step takes that begins together with a read of `read_s`.

    Of equal pieces, the k-th is there after k parts of the read and wanted after k - 1 parts of the step: it is the
    first or the last that keeps the step longest.
    """
    return max(read_s / num_pieces, read_s - step_s * (num_pieces - 1) / num_pieces)
