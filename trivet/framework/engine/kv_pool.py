"""The slot pool of a scheduler, which gives up first what its model of costs says is computed again the soonest."""

from __future__ import annotations

from trivet.framework.engine.cost_model import CostModel
from trivet.framework.memory.reclaim import DEFAULT_RECLAIM, LeastCost, LeastRecent, ReclaimName
from trivet.framework.memory.slots import SlotPool


def kv_pool(
    num_slots: int, slot_tokens: int, costs: CostModel | None, reclaim: ReclaimName = DEFAULT_RECLAIM
) -> SlotPool:
    """A pool of free slots. Without `costs`, slots are equally dear, however many come before them."""

    def recompute_s(depth: int) -> float:
        return 1.0 if costs is None else costs.prefill_s(depth * slot_tokens, slot_tokens)

    return SlotPool(num_slots, slot_tokens, LeastRecent() if reclaim == "lru" else LeastCost(recompute_s))
