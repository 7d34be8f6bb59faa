"""The three legs on the device `npu`, over the fake CANN: `trivet up --device npu` from driver to answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

if "FAKECANN" not in os.environ:
    pytest.skip("runs over the fake CANN: python -m ascend.fakecann.run pytest …", allow_module_level=True)

import torch

from tests.system.tiny import FIXTURES
from trivet.base.settings import Settings
from trivet.framework.model.loader import load
from trivet.serve.legs import LegReport, climb

HOST = Path(__file__).parents[1] / "fixtures" / "hosts" / "kunpeng-910b"  # what the emulated device stands in


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_every_leg_carries_and_the_answer_is_the_same_in_a_batch(family: str, tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    reports: list[LegReport] = []
    climbed = climb(str(FIXTURES / family), settings, reports.append, root=HOST, device="npu", max_context=512)

    assert climbed.failed_leg is None
    assert ["driver", "operators", "framework"] == [report.leg for report in reports]
    assert "npu on npu:0, captured: decodes of up to 64 sequences" == next(
        f.detail for f in reports[2].findings if f.name == "plan"
    )
    assert "passed" == next(f.outcome for f in reports[2].findings if f.name == "same_answer")


def test_the_pools_are_sized_from_the_memory_of_the_device_not_of_the_host(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    free, _ = torch.npu.mem_get_info("npu:0")
    loaded = load(FIXTURES / "llama", device="npu", settings=settings)

    assert free == loaded.device.memory_bytes
