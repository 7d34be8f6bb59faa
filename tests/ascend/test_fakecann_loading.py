"""Weights into an NPU's memory over the fake: by windows of pinned memory, once, and in the form that is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

if "FAKECANN" not in os.environ:
    pytest.skip("runs over the fake CANN: python -m ascend.fakecann.run pytest …", allow_module_level=True)

import numpy as np
import torch

from ascend.fakecann import counters
from tests.ascend.tiny_npu import bind, step
from tests.system.tiny import FIXTURES
from trivet.base.settings import Settings
from trivet.driver.devices.torch_memory import TorchMemory
from trivet.framework.graph import torch_calls
from trivet.framework.graph.torch_plan import TorchPlan
from trivet.framework.model.loader import load, open_model
from trivet.framework.model.loading.read import ReadOptions
from trivet.framework.model.loading.staging import read_to_device
from trivet.framework.model.loading.weights import package_ranges

BATCH = step([(0, 0, 9), (1, 0, 5)])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)


def test_a_window_of_many_weights_is_one_copy_out_of_pinned_memory(settings: Settings) -> None:
    package = open_model(FIXTURES / "llama", device="npu", settings=settings)
    ranges = package_ranges(package.path, package.stored)
    counters.reset()
    memory, places, _ = read_to_device(
        ranges, lambda num_bytes: TorchMemory(num_bytes, torch.device("npu:0")), ReadOptions(2)
    )

    assert 1 == counters.read().counters["host_to_device_copies"]
    assert len(ranges) > 20
    for name, weight in package.weights.items():
        found = memory.view(places[name], (weight.nbytes,), torch.uint8).cpu().numpy()

        np.testing.assert_array_equal(weight.view(np.uint8).ravel(), found)
    memory.close()


@pytest.mark.parametrize("passing_bytes", [40_000, 1 << 30])
def test_what_passes_through_in_parts_answers_as_what_came_from_arrays(
    passing_bytes: int, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_calls, "_PASSING_BYTES", passing_bytes)
    loaded = load(FIXTURES / "llama", device="npu", max_context=300, max_sequences=6, settings=settings)
    wanted = bind().run(BATCH)

    np.testing.assert_array_equal(wanted, loaded.plan.run(BATCH))
    assert sum(each.bytes for each in loaded.package.stored.values()) == loaded.weights.verified
    assert loaded.weights.copy_s is not None


def test_no_weight_stays_in_two_forms(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_calls, "_PASSING_BYTES", 100_000)
    package = open_model(FIXTURES / "llama", device="npu", settings=settings)
    before = torch.npu.memory_allocated()
    loaded = load(package.path, device="npu", kv_memory=1 << 20, max_sequences=1, max_context=128, settings=settings)
    brought = torch.npu.memory_allocated() - before
    assert isinstance(loaded.plan, TorchPlan)
    calls = loaded.plan._calls
    storages = [calls.weight(name).untyped_storage() for name in package.weights]
    held = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    assert held < 1.2 * package.weight_bytes  # each in memory of its own, rounded up, and one memory for what stays
    assert brought < calls.cache_bytes + 1.5 * package.weight_bytes
