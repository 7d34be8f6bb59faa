"""How much a step may do: so many tokens, and no more than is predicted to take so long. It knows no slots."""

from __future__ import annotations

from dataclasses import dataclass

from trivet.framework.engine.cost_model import CostModel, Work
from trivet.framework.engine.sequence import Sequence
from trivet.operators.kv_layout import BLOCK_TOKENS

# How many steps of one decode prefill may add to a step where no target is set. Replayed with the traffic of
# benchmarks/serving.py, chats and every seventh a prompt of 1,500, at 0.8 and 1.2 requests a second (135M parameters,
# 42 GB/s, 175 GFLOP/s): the standard deviation of the gaps between tokens is 8 to 14 ms, where eight steps give 17 to
# 32 and steps of 512 tokens 60 to 136; the p99 of first tokens is 16 to 28 % later than with those. Two steps give no
# less: the block that a prefill gets in any case takes as long as three. Where more arrives than can be served, a tenth
# fewer tokens a second are made than in steps of 512. More steps for a longer line were tried: that gives half of it
# back, for twice the deviation.
_STEPS_ADDED = 3
_ONE_DECODE = Work().plus(0, 1)


@dataclass(frozen=True)
class Budget:
    """At most `max_tokens` in a step; with a model of costs, no more than `target_s` seconds of work.

    Without a target, a prefill may add to the decodes what three steps of one decode take: nobody's next token waits
    for a whole prompt. Where nobody decodes nobody waits, and only `max_tokens` bounds a step.
    """

    max_tokens: int
    costs: CostModel | None = None
    target_s: float | None = None

    def limit_s(self, decodes: Work) -> float | None:
        """The seconds that a step with these decodes may be predicted to take; None for any."""
        if self.costs is None or self.target_s is not None:
            return self.target_s
        if decodes.num_tokens == 0 or not self.costs.is_known:
            return None
        return self.costs.predict(decodes) + _STEPS_ADDED * self.costs.predict(_ONE_DECODE)

    def begin(self, decodes: Work) -> StepBudget:
        """What is left for prefill in a step that has these decodes, which run whatever they take."""
        return StepBudget(self, decodes)


class StepBudget:
    """What is left of one step.

    The first prefill of a step gets a block of tokens even where the decodes alone are past the target: it has to
    come to an end too.
    """

    def __init__(self, budget: Budget, decodes: Work) -> None:
        self._left = budget.max_tokens - decodes.num_tokens
        self._limit_s = budget.limit_s(decodes)
        self._costs = budget.costs
        self._work = decodes
        self._has_prefill = False

    @property
    def has_room(self) -> bool:
        return self._left > 0

    def take(self, sequence: Sequence) -> int:
        """How many of its tokens the sequence may compute in this step; 0 when the step is full."""
        wanted = min(self._left, sequence.num_pending)
        num_tokens = wanted if self._limit_s is None else self._in_time(self._limit_s, sequence.num_computed, wanted)
        # A prompt that was cut short has met the end of the step: the next one does not get its crumbs.
        self._left = self._left - num_tokens if num_tokens == wanted else 0
        self._has_prefill = True
        return num_tokens

    def _in_time(self, limit_s: float, position: int, wanted: int) -> int:
        assert self._costs is not None, "a time is promised blindly"
        num_tokens = self._costs.most_tokens(self._work, position, wanted, limit_s)
        if not self._has_prefill:
            num_tokens = max(num_tokens, min(wanted, BLOCK_TOKENS))
        if num_tokens:
            self._work = self._work.plus(position, num_tokens)
        return num_tokens
