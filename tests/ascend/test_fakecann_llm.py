"""The npu plan of tiny models over the fake: the oracle's logits, and the operators that they run on."""

from __future__ import annotations

import os
from functools import cache

import pytest

if "FAKECANN" not in os.environ:
    pytest.skip("runs over the fake CANN: python -m ascend.fakecann.run pytest …", allow_module_level=True)


import trivet.operators.npu
import trivet.operators.torch  # noqa: F401  registers its implementations, as the line above does
from ascend.fakecann import counters
from tests.ascend.tiny_torch import bfloat16_error_of_allowed, greedy_tokens_in_a_batch
from tests.system.tiny import FAMILIES, LIMITS, graph_and_weights, recorded, step
from trivet.base.dtypes import DType
from trivet.framework.graph.npu_plan import NpuPlan
from trivet.operators.contract import IMPLEMENTATIONS, OPERATORS
from trivet.operators.torch.sample import on_torch
from trivet.operators.verify import verify

SLOT_TOKENS = 128  # the device's attention takes blocks of 128 in prefill


@cache
def plan(family: str, dtype: DType) -> NpuPlan:
    graph, weights = graph_and_weights(family, dtype, 2, "npu")
    return NpuPlan(graph, weights, limits=LIMITS, num_slots=8, slot_tokens=SLOT_TOKENS)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_on_the_device_is_at_most_half_as_wrong_again_as_the_reference_in_bfloat16(family: str) -> None:
    assert bfloat16_error_of_allowed(plan(family, "bfloat16"), family) <= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_on_the_device_gives_the_recorded_tokens_in_a_batch(family: str) -> None:
    assert recorded(family)["greedy_fp32"].tolist() == greedy_tokens_in_a_batch(plan(family, "float32"), family)


def test_attention_and_the_cache_go_through_the_devices_own_operators() -> None:
    llama, batch = plan("llama", "bfloat16"), step([recorded("llama")["prompt"]], [0])
    counters.reset()
    llama.run(batch)
    launched = counters.read().launches

    assert (4, 4) == (launched["aclnnFusedInferAttentionScoreV3"], launched["aclnnScatterPaKvCache"])


@pytest.mark.parametrize("activations", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(name for name, device in IMPLEMENTATIONS if device == "npu"))
def test_an_implementation_agrees_with_its_reference(name: str, activations: DType) -> None:
    assert verify(OPERATORS[name], on_torch("npu", "npu"), activations).failure is None
