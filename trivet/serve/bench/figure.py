"""A measured figure: the samples of one question, beside the best this machine's limits allow.

It measures nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, get_args

Question = Literal["limits", "load", "prefill", "decode", "kernels"]
Unit = Literal["tokens/s", "s", "bytes/s", "FLOP/s"]
Limit = Literal["memory", "multiply-add", "bfloat16 multiply-add", "storage"]
# What the same units of a core do, one after the other.
_OPERATIONS: tuple[Limit, ...] = ("multiply-add", "bfloat16 multiply-add")

QUESTIONS: tuple[Question, ...] = get_args(Question)


@dataclass(frozen=True)
class Measurement:
    """What was sampled, and what each of it needs: bytes or operations per token, or per load, by limit.

    A measurement of a limit has the question "limits" and the limit's name.
    """

    question: Question
    name: str
    unit: Unit
    samples: tuple[float, ...]
    needs: Mapping[Limit, float] = field(default_factory=dict)
    settings: Mapping[str, str | int | float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """A measurement judged: the median, the spread, and the limit that it would meet first."""

    question: Question
    name: str
    value: float  # the median
    unit: Unit
    low: float
    high: float
    repeats: int
    limit: Limit | None  # None for a limit itself
    best: float | None  # what the limit allows, in `unit`
    share_of_limit: float | None  # 1 would be as fast as the limit
    settings: Mapping[str, str | int | float | None]


def speeds_of_limits(measurements: Iterable[Measurement]) -> dict[str, float]:
    """Bytes or operations per second of each limit; the better median where it was measured more than once."""
    speeds: dict[str, float] = {}
    for each in measurements:
        if each.question == "limits":
            speeds[each.name] = max(median(each.samples), speeds.get(each.name, 0.0))
    return speeds


def judge(measurement: Measurement, speeds: Mapping[str, float]) -> Figure:
    """The figure of a measurement. `speeds` has every limit that it needs something of."""
    value = median(measurement.samples)
    least_s = {limit: amount / speeds[limit] for limit, amount in measurement.needs.items()}
    limit = best = share = None
    if least_s:
        computing_s = sum(least_s.get(each, 0.0) for each in _OPERATIONS)
        waiting_s = max((seconds for each, seconds in least_s.items() if each not in _OPERATIONS), default=0.0)
        is_computing = computing_s > waiting_s
        limit = max((each for each in least_s if (each in _OPERATIONS) == is_computing), key=lambda each: least_s[each])
        is_time = measurement.unit == "s"
        best = max(computing_s, waiting_s) if is_time else 1 / max(computing_s, waiting_s)
        share = best / value if is_time else value / best
    return Figure(
        question=measurement.question,
        name=measurement.name,
        value=value,
        unit=measurement.unit,
        low=min(measurement.samples),
        high=max(measurement.samples),
        repeats=len(measurement.samples),
        limit=limit,
        best=best,
        share_of_limit=share,
        settings=measurement.settings,
    )
