"""How long a step will take, told from what its operators must move and compute, corrected by what steps did take.

Each part of a step moves bytes and does arithmetic; the parts follow one another. What a byte and an operation cost is
learned: at first from a few steps of known size, then from every step that is run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from trivet.framework.engine.chunk import Chunk
from trivet.framework.graph.cost import StepCost, step_cost
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.plan import BoundPlan

_GAIN = 0.1  # of an error, how much one step corrects: slower than noise, faster than a change of the machine's clock
_MAX_ERROR = 1.0  # of its predicted time: a step that met something else teaches no more than this
_PROBE_TOKENS, _PROBE_CONTEXT = 32, 1024
_PROBE_S = 0.5  # a probe is repeated for so long at most
_PROBE_RUNS = 3
_FIT_ROUNDS = 200
_GUESSED_STEPS = 16  # that must be seen before what began as a guess is believed


class Work(NamedTuple):
    """How much a step has to do."""

    num_tokens: int = 0
    num_rows: int = 0  # whose logits are wanted
    context: int = 0  # positions read, over all sequences
    attended: int = 0  # pairs of a token and a position it looks at

    def plus(self, position: int, num_tokens: int, num_rows: int = 1) -> Work:
        """This and `num_tokens` more of one sequence, from `position` on."""
        end = position + num_tokens
        pairs = num_tokens * position + num_tokens * (num_tokens + 1) // 2
        return Work(self.num_tokens + num_tokens, self.num_rows + num_rows, self.context + end, self.attended + pairs)


def work_of(chunks: Iterable[Chunk], beside: Work = Work()) -> Work:  # noqa: B008, it is frozen
    """What a step does that computes these chunks beside other work."""
    num_tokens, num_rows, context, attended = beside
    for sequence, count in chunks:
        position = sequence.num_computed
        num_tokens += count
        num_rows += position + count == len(sequence.tokens)
        context += position + count
        attended += count * position + count * (count + 1) // 2
    return Work(num_tokens, num_rows, context, attended)


@dataclass
class Rates:
    """Seconds: of a step in any case, for each row, for a byte of weights or of KV cache, for an operation."""

    step: float = 1e-4
    row: float = 1e-5
    weight_byte: float = 1e-10
    linear_flop: float = 2e-11
    cache_byte: float = 1e-10
    attention_flop: float = 2e-11


def rates_of(bytes_per_s: float, flops_per_s: float, step_s: float = 1e-4, row_s: float = 1e-5) -> Rates:
    """What a device promises that moves so many bytes a second and does so many operations."""
    return Rates(step_s, row_s, 1 / bytes_per_s, 1 / flops_per_s, 1 / bytes_per_s, 1 / flops_per_s)


class CostModel:
    """Predicts steps of one graph on one device. Prediction never falls when a step gets more to do.

    Where bytes and arithmetic overlap, a part takes as long as the longer of the two, which is what a device promises;
    elsewhere as long as both. A CPU's steps are the latter: of a model of 135M parameters, from 1 to 64 sequences, the
    sum is within 8 % of what was measured (benchmarks/results/growth.csv), and the longer as much as a third below it.
    Rates that are a guess give way to what the first steps take; until then nobody should act on a prediction.
    """

    def __init__(self, cost: StepCost, rates: Rates, *, overlaps: bool = True, is_guess: bool = False) -> None:
        self.cost = cost
        self.rates = rates
        self._overlaps = overlaps
        self._num_unseen = _GUESSED_STEPS if is_guess else 0

    @property
    def is_known(self) -> bool:
        """Does a prediction rest on anything but a guess?"""
        return self._num_unseen == 0

    def anew(self) -> CostModel:
        """A model of the same steps where they take something else, which is to be learned."""
        return CostModel(self.cost, replace(self.rates), overlaps=self._overlaps, is_guess=True)

    def predict(self, work: Work) -> float:
        """Seconds of a step."""
        return sum(seconds for _, seconds in self.parts(work))

    def parts(self, work: Work) -> list[tuple[str, float]]:
        """The rates that count in this step, each with the seconds that it accounts for."""
        cost, rates = self.cost, self.rates
        parts = [("step", rates.step)]
        parts += self._both(("weight_byte", cost.body_bytes * rates.weight_byte),
                            ("linear_flop", cost.token_flops * work.num_tokens * rates.linear_flop))  # fmt: skip
        parts += self._both(("cache_byte", cost.context_bytes * work.context * rates.cache_byte),
                            ("attention_flop", cost.attended_flops * work.attended * rates.attention_flop))  # fmt: skip
        if work.num_rows:  # without one, the head does not run
            parts.append(("row", work.num_rows * rates.row))
            parts += self._both(("weight_byte", cost.head_bytes * rates.weight_byte),
                                ("linear_flop", cost.row_flops * work.num_rows * rates.linear_flop))  # fmt: skip
        return parts

    def prefill_s(self, position: int, num_tokens: int) -> float:
        """What so many tokens of a prompt, from `position` on, add to steps that have others in them: arithmetic."""
        work, cost, rates = Work().plus(position, num_tokens), self.cost, self.rates
        linear_s = cost.token_flops * num_tokens * rates.linear_flop
        return linear_s + cost.attended_flops * work.attended * rates.attention_flop

    def learn(self, work: Work, seconds: float, gain: float = _GAIN) -> None:
        """A step of so much work took so long: what it took time for costs a little more, or less, than was thought;
        much, as long as that was a guess.

        The error is shared out by what each part accounts for (normalised least mean squares, in relative terms), so
        a rate stays above zero and one that did not count learns nothing.
        """
        shares: dict[str, float] = {}
        predicted = 0.0
        for name, part in self.parts(work):
            shares[name] = shares.get(name, 0.0) + part
            predicted += part
        gain = max(gain, self._num_unseen / _GUESSED_STEPS)
        self._num_unseen = max(0, self._num_unseen - 1)
        error = min(seconds / predicted - 1, _MAX_ERROR) * gain
        norm = sum(part * part for part in shares.values()) / predicted
        for name, part in shares.items():
            setattr(self.rates, name, getattr(self.rates, name) * max(0.5, 1 + error * part / norm))

    def _both(self, *parts: tuple[str, float]) -> tuple[tuple[str, float], ...]:
        """Of bytes and arithmetic, what counts."""
        return (max(parts, key=lambda part: part[1]),) if self._overlaps else parts

    def most_tokens(self, work: Work, position: int, num_tokens: int, target_s: float) -> int:
        """How many of a sequence's next `num_tokens`, from `position` on, fit beside `work` into `target_s` seconds."""
        fits, beyond = 0, num_tokens + 1
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            if self.predict(work.plus(position, middle)) <= target_s:
                fits = middle
            else:
                beyond = middle
        return fits


def guessed(graph: Graph) -> CostModel:
    """A model of a graph on a device that nobody has measured: it learns from the steps that are run anyway."""
    return CostModel(step_cost(graph), Rates(), overlaps=False, is_guess=True)


def calibrated(plan: BoundPlan, clock: Callable[[], float] = time.perf_counter) -> CostModel:
    """A model of `plan` on this device, fitted to a few steps that are run now. Nothing else may use the plan."""
    from trivet.framework.graph.profile import one_sequence  # a start that promises no times measures nothing

    model = CostModel(step_cost(plan.graph), Rates(), overlaps=False)
    room = min(plan.limits.max_context, plan.num_slots * plan.slot_tokens, _PROBE_CONTEXT)
    many = min(plan.limits.max_tokens, room, _PROBE_TOKENS)
    measured = []
    for past, num_tokens in dict.fromkeys([(0, 1), (0, many), (room - 1, 1), (room - many, many)]):
        batch = one_sequence(num_tokens, past, plan.slot_tokens)
        times: list[float] = []
        while len(times) < _PROBE_RUNS and sum(times) < _PROBE_S:
            start = clock()
            plan.run(batch)
            times.append(clock() - start)
        measured.append((Work().plus(past, num_tokens), min(times)))
    for _ in range(_FIT_ROUNDS):
        for work, seconds in measured:
            model.learn(work, seconds, gain=0.5)
    return model
