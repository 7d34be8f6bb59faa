"""A trace through the real engine, at the trace's own times, beside what the simulation of the same foretold."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass

from trivet.framework.engine.cost_model import CostModel
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.kv_pool import kv_pool
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.replay.prompts import prompt_of
from trivet.framework.engine.replay.simulation import Simulation
from trivet.framework.engine.replay.spread import spread
from trivet.framework.engine.replay.trace import Arrival
from trivet.framework.engine.sequence import Request, new_request
from trivet.framework.engine.targets import Targets
from trivet.framework.graph.plan import Plan
from trivet.framework.memory.reclaim import DEFAULT_RECLAIM, ReclaimName


@dataclass(frozen=True)
class Times:
    """What clients saw, in seconds; as `Served` has them."""

    num_answered: int
    duration_s: float
    ttft_s: dict[str, float]
    itl_s: dict[str, float]


@dataclass(frozen=True)
class Comparison:
    """The same requests twice."""

    predicted: Times
    measured: Times

    def errors(self) -> dict[str, float]:
        """How far off each figure was foretold, as a share of what was measured: 0.1 is a tenth too much."""
        pairs = {
            f"{name}_{figure}": (getattr(self.predicted, name)[figure], seconds)
            for name in ("ttft_s", "itl_s") for figure, seconds in getattr(self.measured, name).items()
        }  # fmt: skip
        return {name: predicted / seconds - 1 for name, (predicted, seconds) in pairs.items() if seconds}


def compare(
    plan: Plan, costs: CostModel, arrivals: list[Arrival], reclaim: ReclaimName = DEFAULT_RECLAIM
) -> Comparison:
    """`plan` serves the arrivals; `costs`, of that plan on this host, foretell it first. Takes as long as the trace."""
    limits = plan.limits
    pool = kv_pool(plan.num_slots, plan.slot_tokens, costs, reclaim)
    max_running = min(limits.max_sequences, limits.max_rows)
    # The engine's copy learns from steps; what is compared is what was foretold.
    simulation = Simulation(pool, deepcopy(costs), Targets(), limits.max_context, limits.max_tokens, max_running)
    served = simulation.run(arrivals)
    predicted = Times(served.num_finished, served.duration_s, served.ttft_s, served.itl_s)
    engine = Engine(plan, None, costs=costs, reclaim=reclaim)
    return Comparison(predicted, _measured(engine, arrivals, plan.vocab_size))


def _measured(
    engine: Engine, arrivals: Iterable[Arrival], vocab_size: int, clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Times:  # fmt: skip
    asked = [
        (arrival.at_s, _request(arrival, order, vocab_size))
        for order, arrival in enumerate(arrivals)
        if arrival.num_prompt + arrival.num_answer <= engine.max_length
    ]  # as the simulation refuses the others
    left = asked[::-1]
    last_s: dict[str, float] = {}  # when each request arrived, or had its last token
    ttft_s, itl_s = array("d"), array("d")
    num_answered = 0
    begun_s = clock()
    while left or engine.has_work:
        now_s = clock() - begun_s
        while left and left[-1][0] <= now_s:
            at_s, request = left.pop()
            engine.add(request)
            last_s[request.request_id] = at_s
        if not engine.has_work:
            sleep(left[-1][0] - now_s)
            continue
        deltas = engine.step()
        now_s = clock() - begun_s
        for delta in deltas:
            gaps = ttft_s if delta.num_generated_tokens == 1 else itl_s
            gaps.append(now_s - last_s[delta.request_id])
            last_s[delta.request_id] = now_s
            num_answered += delta.finish_reason is not None
    duration_s = clock() - begun_s
    engine.close()
    return Times(num_answered, duration_s, spread(ttft_s), spread(itl_s))


def _request(arrival: Arrival, order: int, vocab_size: int) -> Request:
    params = SamplingParams(temperature=0, max_tokens=arrival.num_answer, ignore_eos=True)
    return new_request(str(order), prompt_of(arrival, order, vocab_size), params)
