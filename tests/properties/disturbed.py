"""What befalls an engine in the properties of its KV cache, and choices that are made for it instead of measured."""

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle

from tests.properties.test_same_answer import Answer, serve
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import new_request
from trivet.framework.graph.plan import Plan
from trivet.framework.memory.worth import Worth

Schedule = list[tuple[list[int], SamplingParams, int]]  # prompt, parameters, the step before which it arrives


class Decided(Worth):
    """Swaps or computes as it is told, in turn; waits for files as long as it is told, or as was measured."""

    def __init__(self, swaps: Iterable[bool] = (True,), patience_s: float | None = None) -> None:
        super().__init__()
        self._swaps = cycle([*swaps, True])
        self._patience_s = patience_s

    def pays_to_sink(self, block_tokens: int, share: float | None) -> bool:
        return next(self._swaps)

    def pays_to_restore(self, block_tokens: int) -> bool:
        return next(self._swaps)

    def patience_s(self, *counts: int) -> float | None:
        return super().patience_s(*counts) if self._patience_s is None else self._patience_s


def alone(make: Callable[[], Plan], schedule: Schedule) -> list[Answer]:
    """What each request answers with nobody else there."""
    return [serve(Engine(make(), None), [(prompt, each, 0)])[0] for prompt, each, _ in schedule]


def leave(engine: Engine, schedule: Schedule, leaves: Sequence[int]) -> None:
    """The same requests, begun and given up again: those of these numbers after a step each, then the others."""
    for number, (prompt, params, _) in enumerate(schedule):
        engine.add(new_request(f"leaves {number}", prompt, params))
    for number in leaves:
        engine.step()
        engine.abort(f"leaves {number}")
    engine.abort_all()
