"""What steps are predicted to take, and took: each lane has a model of costs, which learns here; observers are told."""

from __future__ import annotations

from trivet._native import Gate
from trivet.framework.engine.cost_model import CostModel, Work, work_of
from trivet.framework.engine.flight import Begun
from trivet.framework.engine.lanes import LaneName, Lanes
from trivet.framework.engine.observer import Observer, Step


class StepTimes:
    """Of steps on all cores `costs`; where lanes run side by side they have models of their own, to be learned."""

    def __init__(self, costs: CostModel | None, observer: Observer, *, has_lanes: bool) -> None:
        self._costs: dict[LaneName, CostModel] = {} if costs is None else {"both": costs}
        self._observer = observer
        if costs is not None and has_lanes:
            self._costs |= {"decode": costs.anew(), "prefill": costs.anew()}

    def known(self, lane: LaneName) -> CostModel | None:
        """What a prediction may rest on; None as long as the costs are a guess, or there are none."""
        costs = self._costs.get(lane)
        return costs if costs is not None and costs.is_known else None

    def begin(self, lane: LaneName, step: Lanes, decodes: Work, gates: list[Gate], start_s: float) -> Begun:
        """`decodes`: the work of those in the step."""
        if not self._costs:
            return Begun(lane, step, start_s, gates, None, None)
        work, known = work_of(step.prefills, decodes), self.known(lane)
        return Begun(lane, step, start_s, gates, work, None if known is None else known.predict(work))

    def ran(self, begun: Begun, end_s: float, num_preemptions: int, *, has_failed: bool = False) -> float:
        """Learn from a step, unless it has failed, and tell of it; the seconds it took without waiting at gates, which
        teaches nothing of computing."""
        seconds = end_s - begun.start_s - sum(gate.stalled_s for gate in begun.gates)
        if begun.work is not None and seconds > 0 and not has_failed:
            self._costs[begun.lane].learn(begun.work, seconds)
        self._observer.step(Step(begun.lane, begun.step.num_tokens, num_preemptions, seconds, begun.predicted_s))
        return seconds
