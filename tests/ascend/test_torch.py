"""PyTorch as the second opinion: each operator against its contract, each family against its recorded logits."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs PyTorch: make test-ascend installs it")

import trivet.operators.torch  # noqa: F401  registers the implementations
from tests.ascend.tiny_torch import bfloat16_error_of_allowed, greedy_tokens_in_a_batch, torch_plan
from tests.system.tiny import FAMILIES, recorded, step
from trivet.base.dtypes import DType
from trivet.framework.graph.passes import MAX_LEVEL
from trivet.framework.graph.plan import Batch
from trivet.framework.graph.torch_plan import TorchPlan
from trivet.operators.contract import IMPLEMENTATIONS, OPERATORS, Call
from trivet.operators.torch.call import Run
from trivet.operators.torch.sample import on_torch
from trivet.operators.torch.traffic import Traffic
from trivet.operators.verify import verify


def plan(family: str, dtype: DType, level: int = MAX_LEVEL) -> TorchPlan:
    return torch_plan(family, dtype, "torch", device="cpu", num_slots=40, slot_tokens=16, level=level)


@pytest.mark.parametrize("activations", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_an_implementation_agrees_with_its_reference(name: str, activations: DType) -> None:
    assert verify(OPERATORS[name], on_torch(), activations).failure is None


@pytest.mark.parametrize("level", range(MAX_LEVEL + 1))
@pytest.mark.parametrize("family", FAMILIES)
def test_float32_logits_are_the_recorded_ones(family: str, level: int) -> None:
    oracle = recorded(family)
    logits = plan(family, "float32", level).run(step([oracle["prompt"]], [0]))

    assert np.abs(logits - oracle["logits_fp32"]).max() < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_at_most_half_as_wrong_again_as_the_reference_in_bfloat16(family: str) -> None:
    assert bfloat16_error_of_allowed(plan(family, "bfloat16"), family) <= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_gets_the_recorded_tokens_from_it_in_a_batch(family: str) -> None:
    assert recorded(family)["greedy_fp32"].tolist() == greedy_tokens_in_a_batch(plan(family, "float32"), family)


def test_the_memory_a_plan_reports_is_what_its_caches_take() -> None:
    # keys and values, 40 slots of 16 tokens, 2 heads of 16, 4 layers, 2 bytes
    assert 2 * 40 * 16 * 2 * 16 * 4 * 2 == plan("llama", "bfloat16").pool_bytes


def test_a_profile_has_the_time_of_every_call_that_moves_a_byte() -> None:
    torch_plan = plan("qwen2", "bfloat16")
    _, seconds = torch_plan.profile(step([[5, 6, 7]], [0]))

    assert len(torch_plan.nodes) == len(seconds)
    assert (seconds > 0).all()


def test_a_planted_copy_shows_as_more_bytes_than_the_contract_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = IMPLEMENTATIONS["take_rows", "torch"][0]

    def with_a_copy(call: Call, sizes: Mapping[str, int]) -> Run:
        run = honest.lower(call, sizes)
        return lambda inputs, lengths: [output.clone() for output in run(inputs, lengths)]

    batch = step([[5, 6, 7]], [0])
    before = traffic_of("take_rows", batch)
    monkeypatch.setitem(IMPLEMENTATIONS, ("take_rows", "torch"), [replace(honest, lower=with_a_copy)])
    after = traffic_of("take_rows", batch)

    assert (0, 1) == (before.copies, after.copies)
    # three rows of 64 bfloat16 are read once more and written once more
    assert 2 * 3 * 64 * 2 == after.num_bytes - before.num_bytes


def traffic_of(operator: str, batch: Batch) -> Traffic:
    torch_plan = plan("llama", "bfloat16")
    return next(each for node, each in zip(torch_plan.nodes, torch_plan.traffic(batch), strict=True)
                if node.operator == operator)  # fmt: skip


def test_a_slot_that_was_read_can_be_written_to_another_and_reads_the_same() -> None:
    written = plan("llama", "bfloat16")
    written.run(step([recorded("llama")["prompt"]], [0]))
    slot = step([[1]], [0]).slots[0][0]
    first, second = (np.zeros(written.slot_bytes, np.uint8) for _ in range(2))
    written.read_slot(slot, first)
    written.write_slot(30, *written.pieces, first)
    written.read_slot(30, second)

    assert 40 * written.slot_bytes == written.pool_bytes
    assert first.any() and np.array_equal(first, second)
