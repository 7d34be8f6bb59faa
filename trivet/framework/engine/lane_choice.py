"""One lane or two? Measured on a loaded model: how much prefill each does where decodes take the same time.

One lane reads the weights once for decodes and prefill. Two share out the cores, so that decodes wait for memory while
prefill multiplies. Which is better depends on the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trivet.base.dtypes import Array
from trivet.base.units import format_seconds
from trivet.framework.graph.plan import Batch, Plan
from trivet.framework.graph.side_by_side import SideBySide, refusal, side_by_side

AskedLanes = Literal["auto", "1", "2"]

_NUM_DECODES, _CONTEXT = 8, 256  # positions each has behind it
_CHUNK = 256  # tokens of a step of prefill
_MIN_S = 0.5  # of both lanes at once
_REPEATS = 5  # of every other step; the median counts everywhere, since nobody is served by the fastest
_FIRST_PREFILL = 16  # tokens beside decodes; doubled from there


@dataclass(frozen=True)
class Measured:
    """What steps took with so many cores for decodes and so many for prefill; tokens are those of prefill."""

    num_decodes: int
    decode_cpus: int
    prefill_cpus: int
    decode_alone_s: float
    prefill_alone_per_s: float
    decode_s: float  # beside prefill
    prefill_per_s: float  # beside decodes
    one_lane_per_s: float  # on all cores, in steps with the same decodes that take `decode_s` too

    @property
    def gain(self) -> float:
        """Prefill of two lanes over that of one."""
        return self.prefill_per_s / self.one_lane_per_s if self.one_lane_per_s else float("inf")


@dataclass(frozen=True)
class Choice:
    """How many cores decodes get of their own; None is one lane. `lines` say why, for people."""

    decode_cpus: int | None
    lines: tuple[str, ...]
    measured: tuple[Measured, ...] = ()

    @property
    def num_lanes(self) -> int:
        return 1 if self.decode_cpus is None else 2


def splits_of(num_cpus: int) -> tuple[int, ...]:
    """How many of the cores to try for decodes: memory is busy long before all cores are."""
    return tuple(sorted({max(1, num_cpus // 4), max(1, num_cpus // 2)}))


def choose_lanes(plan: Plan, cpus: Sequence[int], asked: AskedLanes) -> tuple[SideBySide | None, Choice]:
    """The lanes asked for, bound; None for one. "auto" measures where two could be. Nothing else may use the plan
    meanwhile.

    Raises ResourceError for two where they cannot be.
    """
    if asked == "auto":
        reason = refusal(plan, len(cpus))
        choice = measured_choice(plan, cpus) if reason is None else Choice(None, (f"one lane: {reason}",))
    elif asked == "2":
        choice = Choice(splits_of(len(cpus))[0], ("two lanes: asked for",))
    else:
        choice = Choice(None, ("one lane: asked for",))
    return None if choice.decode_cpus is None else side_by_side(plan, cpus, choice.decode_cpus), choice


def measured_choice(plan: Plan, cpus: Sequence[int], clock: Callable[[], float] = time.perf_counter) -> Choice:
    """What the steps of every split say. Raises ResourceError where there is nothing to share out."""
    return judge([measure(plan, cpus, num_decode_cpus, clock) for num_decode_cpus in splits_of(len(cpus))])


def judge(measured: Sequence[Measured]) -> Choice:
    """Two lanes where they do more prefill in the time that decodes take, by the split that does most more."""
    best = max(measured, key=lambda each: each.gain)
    lines = tuple(_line(each) for each in measured)
    if best.gain > 1:
        more = f"{best.gain:.2f} times the prefill of one" if best.one_lane_per_s else "one does no prefill"
        why = f"two lanes, {best.decode_cpus} + {best.prefill_cpus} cores: {more} where decodes take the same time"
        return Choice(best.decode_cpus, (*lines, why), tuple(measured))
    why = f"one lane: two do {best.gain:.2f} times its prefill at best where decodes take the same time"
    return Choice(None, (*lines, why), tuple(measured))


def _line(measured: Measured) -> str:
    alone, beside = format_seconds(measured.decode_alone_s), format_seconds(measured.decode_s)
    return (
        f"{measured.decode_cpus} + {measured.prefill_cpus} cores: {measured.num_decodes} decodes take {alone} alone, "
        f"{beside} beside prefill; prefill does {measured.prefill_alone_per_s:.0f} tokens/s alone, "
        f"{measured.prefill_per_s:.0f} beside decodes; one lane does {measured.one_lane_per_s:.0f} in steps of {beside}"
    )


def measure(
    plan: Plan, cpus: Sequence[int], num_decode_cpus: int, clock: Callable[[], float] = time.perf_counter
) -> Measured:
    """Time each lane alone, both at once, and one lane on all cores."""
    with closing(side_by_side(plan, cpus, num_decode_cpus)) as lanes:
        decodes, prefill = _decodes(plan), _prefill(plan)
        decode_alone_s, prefill_alone_s = (
            _typical(run, batch, clock) for run, batch in ((lanes.decodes, decodes), (lanes.prefills, prefill))
        )
        decode_s, prefill_s = _at_once(lanes, decodes, prefill, clock)
    return Measured(
        num_decodes=len(decodes.slots),
        decode_cpus=num_decode_cpus,
        prefill_cpus=len(cpus) - num_decode_cpus,
        decode_alone_s=decode_alone_s,
        prefill_alone_per_s=len(prefill.tokens) / prefill_alone_s,
        decode_s=decode_s,
        prefill_per_s=len(prefill.tokens) / prefill_s,
        one_lane_per_s=_most_beside(plan, decodes, decode_s, clock) / decode_s,
    )


def _decodes(plan: Plan, num_prefill: int = 0) -> Batch:
    """Some sequences with one token each, and behind them one with `num_prefill` tokens of a prompt."""
    limits = plan.limits
    context = min(_CONTEXT, limits.max_context - 1)
    num_decodes = max(1, min(_NUM_DECODES, limits.max_sequences - 1, limits.max_rows - 1))
    counts = np.array([1] * num_decodes + [num_prefill] * (num_prefill > 0))
    firsts = np.array([context] * num_decodes + [0] * (num_prefill > 0))
    return _batch(plan, firsts, counts)


def _prefill(plan: Plan) -> Batch:
    num_tokens = min(_CHUNK, plan.limits.max_tokens, plan.limits.max_context)
    return _batch(plan, np.array([0]), np.array([num_tokens]), plan.num_slots // 2)  # far from those of the decodes


def _batch(plan: Plan, firsts: Array, counts: Array, first_slot: int = 0) -> Batch:
    """A step of sequences that have so many tokens from those positions on. Their slots hold anything: who reads what
    is computed here?"""
    ends = np.cumsum(counts)
    starts = np.concatenate([[0], ends])
    width = int(-(-(firsts + counts).max() // plan.slot_tokens))
    slots = (first_slot + np.arange(len(counts) * width).reshape(len(counts), width)) % plan.num_slots
    positions = np.arange(ends[-1]) - np.repeat(starts[:-1] - firsts, counts)
    arrays = (np.zeros(ends[-1]), positions, starts, slots, ends - 1)
    return Batch(*(each.astype(np.int32) for each in arrays))


def _seconds(plan: Plan, batch: Batch, clock: Callable[[], float]) -> float:
    start = clock()
    plan.run(batch)
    return clock() - start


def _typical(plan: Plan, batch: Batch, clock: Callable[[], float]) -> float:
    return float(np.median([_seconds(plan, batch, clock) for _ in range(_REPEATS)]))


def _at_once(
    lanes: SideBySide, decodes: Batch, prefill: Batch, clock: Callable[[], float]
) -> tuple[float, float]:  # fmt: skip
    """Seconds of a step in each lane while the other runs."""
    decode_s: list[float] = []
    prefill_s: list[float] = []
    with ThreadPoolExecutor(1) as beside:
        end_s = clock() + _MIN_S
        while clock() < end_s or len(prefill_s) < _REPEATS:
            flying = beside.submit(_seconds, lanes.prefills, prefill, clock)
            while not flying.done():
                decode_s.append(_seconds(lanes.decodes, decodes, clock))
            prefill_s.append(flying.result())
    return float(np.median(decode_s)), float(np.median(prefill_s))


def _most_beside(plan: Plan, decodes: Batch, step_s: float, clock: Callable[[], float]) -> float:
    """How many tokens of prefill fit beside the decodes into a step of so many seconds, on all cores."""
    most = min(plan.limits.max_tokens - len(decodes.tokens), plan.limits.max_context)
    fits, fits_s = 0, _typical(plan, decodes, clock)
    num_tokens = min(_FIRST_PREFILL, most)
    while fits < most and fits_s < step_s:
        seconds = _typical(plan, _decodes(plan, num_tokens), clock)
        if seconds > step_s:
            return fits + (num_tokens - fits) * (step_s - fits_s) / (seconds - fits_s)
        fits, fits_s = num_tokens, seconds
        num_tokens = min(2 * num_tokens, most)
    return fits
