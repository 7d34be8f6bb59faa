"""How much a step may do: so many tokens, and no more than is predicted to take so long. It knows no slots."""

from __future__ import annotations

from dataclasses import dataclass

from trivet.framework.engine.cost_model import CostModel, Work
from trivet.framework.engine.sequence import Sequence
from trivet.operators.kv_layout import BLOCK_TOKENS


@dataclass(frozen=True)
class Budget:
    """At most `max_tokens` in a step; with a model of costs and a target, no more than `target_s` seconds of work."""

    max_tokens: int
    costs: CostModel | None = None
    target_s: float | None = None

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
        self._target_s = budget.target_s
        self._costs = budget.costs if budget.target_s is not None else None
        self._work = decodes
        self._has_prefill = False

    @property
    def has_room(self) -> bool:
        return self._left > 0

    def take(self, sequence: Sequence) -> int:
        """How many of its tokens the sequence may compute in this step; 0 when the step is full."""
        wanted = min(self._left, sequence.num_pending)
        num_tokens = wanted if self._costs is None else self._in_time(self._costs, sequence.num_computed, wanted)
        # A prompt that was cut short has met the end of the step: the next one does not get its crumbs.
        self._left = self._left - num_tokens if num_tokens == wanted else 0
        self._has_prefill = True
        return num_tokens

    def _in_time(self, costs: CostModel, position: int, wanted: int) -> int:
        assert self._target_s is not None
        num_tokens = costs.most_tokens(self._work, position, wanted, self._target_s)
        if not self._has_prefill:
            num_tokens = max(num_tokens, min(wanted, BLOCK_TOKENS))
        if num_tokens:
            self._work = self._work.plus(position, num_tokens)
        return num_tokens
