"""Sequences that nobody has run yet."""

from __future__ import annotations

from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sampler import to_draw
from trivet.framework.engine.sequence import Request, Sequence
from trivet.framework.engine.terms import Terms

DRAW = to_draw(SamplingParams(), 1, seed=0, choice=0, stop_ids=())


def waiting(order: int, num_tokens: int, tenant: str = "", priority: int = 0) -> Sequence:
    request = Request(f"r{order}", (1,) * num_tokens, SamplingParams(), 0, terms=Terms(tenant, priority))
    return Sequence(request, 0, order, 10**6, frozenset(), DRAW, None, 0.0)
