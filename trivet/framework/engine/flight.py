"""A step while it runs. One of prefill may fly: run on a thread of its own while the engine's steps decodes.

It computes, and tells when it was done. What becomes of its sequences meanwhile, it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from trivet._native import Gate
from trivet.base.dtypes import Array
from trivet.framework.engine.batch import to_batch
from trivet.framework.engine.cost_model import Work
from trivet.framework.engine.decodes import Decodes
from trivet.framework.engine.lanes import LaneName, Lanes
from trivet.framework.graph.plan import Batch, Plan


@dataclass(frozen=True)
class Begun:
    """A step that runs, and what is known of it before it has."""

    lane: LaneName
    step: Lanes
    start_s: float
    gates: list[Gate]
    work: Work | None  # None where nothing learns from it
    predicted_s: float | None  # None where nothing predicts


class Landed(NamedTuple):
    logits: Array  # overwritten by the plan's next step
    end_s: float  # of the clock


@dataclass(frozen=True)
class Flight:
    """A step in the air, and where it will land."""

    begun: Begun
    landed: Future[Landed]


class Runway:
    """Lets steps of prefill fly on `plan`, one at a time."""

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self.sampler = plan.sampler
        self._plan = plan
        self._clock = clock
        self._rows = Decodes(plan.limits.max_sequences, plan.slot_tokens)  # the engine's change while a step flies
        self._thread = ThreadPoolExecutor(1, "trivet-prefill")

    def take_off(self, begun: Begun) -> Flight:
        """The step before must have landed."""
        batch = to_batch(self._rows, begun.step.prefills)
        return Flight(begun, self._thread.submit(self._run, batch, begun.gates))

    def close(self) -> None:
        self._thread.shutdown()

    def _run(self, batch: Batch, gates: Sequence[Gate]) -> Landed:
        return Landed(self._plan.run(batch, gates), self._clock())
