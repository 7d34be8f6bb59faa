"""The tiny oracle checkpoints as plans on a torch device, and what is asked of any of them."""

from __future__ import annotations

import numpy as np

from tests.system.tiny import LIMITS, graph_and_weights, recorded, step
from trivet.base.dtypes import DType
from trivet.driver.devices.device import DeviceName
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import new_request
from trivet.framework.graph.passes import MAX_LEVEL
from trivet.framework.graph.torch_plan import TorchPlan


def torch_plan(
    family: str,
    dtype: DType,
    name: DeviceName,
    *,
    device: str,
    num_slots: int,
    slot_tokens: int,
    level: int = MAX_LEVEL,
) -> TorchPlan:
    graph, weights = graph_and_weights(family, dtype, level, name)
    return TorchPlan(
        graph, weights, limits=LIMITS, num_slots=num_slots, slot_tokens=slot_tokens, device=device, registered=name
    )


def bfloat16_error_of_allowed(plan: TorchPlan, family: str) -> float:
    """The mean error of the prompt's logits, as a share of half as much again as the reference's own in bfloat16."""
    oracle = recorded(family)
    logits = plan.run(step([oracle["prompt"]], [0]))
    allowed = 1.5 * np.abs(oracle["logits_bf16"] - oracle["logits_fp32"]).mean()
    return float(np.abs(logits - oracle["logits_fp32"]).mean() / allowed)


def greedy_tokens_in_a_batch(plan: TorchPlan, family: str) -> list[int]:
    """Sixteen tokens after the oracle's prompt, served beside another request and in short steps."""
    prompt = recorded(family)["prompt"]
    engine = Engine(plan, None, max_step_tokens=20)
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    engine.add(new_request("other", prompt[::-1].tolist(), params))
    engine.add(new_request("oracle", prompt.tolist(), params))
    tokens: list[int] = []
    while engine.has_work:
        tokens += [token for delta in engine.step() if delta.request_id == "oracle" for token in delta.token_ids]
    return tokens
