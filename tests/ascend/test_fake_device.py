"""A step of a plan is one copy to the device, one back, and no wait between; the device that says so refuses misuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", minversion="2.10", reason="needs PyTorch 2.10: make test-ascend installs it")

import torch

import trivet.operators.torch  # noqa: F401  registers the implementations
from ascend.fake_device import Misuse, counted
from tests.ascend.tiny_torch import greedy_tokens_in_a_batch, torch_plan
from tests.system.tiny import FAMILIES, recorded, step
from trivet.base.dtypes import DType
from trivet.framework.graph.torch_plan import TorchPlan
from trivet.operators.contract import IMPLEMENTATIONS, Call
from trivet.operators.torch.call import Run
from trivet.operators.torch.lengths import StepLengths


def _plan(family: str, dtype: DType) -> TorchPlan:
    return torch_plan(family, dtype, "torch", device="fake:0", num_slots=40, slot_tokens=16)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_one_copy_there_and_one_back_and_no_wait(family: str, dtype: DType) -> None:
    plan, prompt = _plan(family, dtype), recorded(family)["prompt"]

    for batch in (step([prompt], [0]), step([[5], [6, 7]], [0, 0])):
        with counted() as ledger:
            plan.run(batch)

        assert ["h2d", "d2h"] == ledger.moves
        assert ledger.operations >= len(plan.nodes)


def test_a_planted_wait_and_a_planted_copy_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = IMPLEMENTATIONS["take_rows", "torch"][0]

    def curious(call: Call, sizes: Mapping[str, int]) -> Run:
        run = honest.lower(call, sizes)

        def look(inputs: list[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
            made = run(inputs, lengths)
            made[0].max().item()
            return [made[0].cpu().to("fake")]

        return look

    monkeypatch.setitem(IMPLEMENTATIONS, ("take_rows", "torch"), [replace(honest, lower=curious)])
    plan = _plan("llama", "float32")
    with counted() as ledger:
        plan.run(step([[5, 6]], [0]))

    assert ["h2d", "sync", "d2h", "h2d", "d2h"] == ledger.moves


@pytest.mark.parametrize("family", FAMILIES)
def test_the_device_changes_no_answer(family: str) -> None:
    oracle = recorded(family)
    logits = _plan(family, "float32").run(step([oracle["prompt"]], [0]))

    assert np.abs(logits - oracle["logits_fp32"]).max() < 1e-3
    assert oracle["greedy_fp32"].tolist() == greedy_tokens_in_a_batch(_plan(family, "float32"), family)


def test_the_host_cannot_reach_a_tensor_on_the_device() -> None:
    there = torch.ones(3).to("fake")

    with pytest.raises((RuntimeError, TypeError)):
        there.numpy()
    with pytest.raises(Misuse, match="one operand is on the host"):
        there + torch.ones(3)


def test_asking_for_a_value_is_a_wait() -> None:
    there = torch.arange(4, device="fake")
    with counted() as ledger:
        assert 3 == there.max().item()
        assert [[1], [2], [3]] == torch.nonzero(there).cpu().tolist()

    assert ["sync", "sync", "d2h"] == ledger.moves


def test_views_share_their_memory_and_cost_nothing() -> None:
    with counted() as ledger:
        there = torch.zeros(2, 3, device="fake")
        before = ledger.operations
        row = there.view(3, 2)[1]
        assert before == ledger.operations
        row.fill_(7)

    assert [0, 0, 7, 7, 0, 0] == there.cpu().view(-1).tolist()


def test_a_read_on_another_stream_needs_an_event() -> None:
    with counted():
        side, there = torch.fake.Stream(), torch.ones(3).to("fake", non_blocking=True)
        with torch.fake.stream(side), pytest.raises(Misuse, match="another stream may still be at"):
            there + 1
        side.wait_event(torch.fake.current_stream().record_event())
        with torch.fake.stream(side):
            made = there + 1

        assert [2, 2, 2] == _waited(made, side)


def test_a_write_on_another_stream_waits_for_the_readers_too() -> None:
    with counted():
        side, there = torch.fake.Stream(), torch.ones(3).to("fake")
        there + 1
        with torch.fake.stream(side), pytest.raises(Misuse, match=r"fill_.*another stream"):
            there.fill_(2)


def test_what_a_copy_has_not_brought_is_not_there_yet() -> None:
    with counted():
        here = torch.ones(3).to("fake").to("cpu", non_blocking=True)
        assert here.isnan().all()
        torch.fake.synchronize()

        assert [1, 1, 1] == here.tolist()


def test_a_host_buffer_stays_as_it_is_until_the_copy_is_over() -> None:
    with counted():
        here = torch.ones(3)
        here.to("fake", non_blocking=True)
        here[1] = 5
        with pytest.raises(Misuse, match="was changed while a copy from it was on its way"):
            torch.fake.synchronize()
        torch.ones(3).to("fake", non_blocking=True)
        torch.fake.synchronize()


def _waited(tensor: torch.Tensor, stream: object) -> list[float]:
    """The numbers, after the stream that made them."""
    torch.fake.current_stream().wait_stream(stream)
    numbers: list[float] = tensor.cpu().tolist()
    return numbers
