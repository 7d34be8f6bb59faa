"""A real Ascend NPU: every operator against its contract, every family against its recorded logits, the three legs.

Run them on the host that has it, in an environment with torch_npu and CANN: python -m pytest tests/hardware
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.system.tiny import FAMILIES, FIXTURES, recorded
from trivet.base.errors import ResourceError
from trivet.base.settings import Settings
from trivet.framework.engine.accuracy import Side, measure
from trivet.framework.graph.binding import BINDINGS
from trivet.operators import OPERATORS
from trivet.operators.verify import Run, verify
from trivet.serve.legs import LegReport, climb


@pytest.fixture(scope="module")
def run() -> Run:
    if "FAKECANN" in os.environ:
        pytest.skip("needs a real Ascend NPU, and CANN's libraries are the fake ones here")
    try:
        return BINDINGS["npu"].run_samples(None)
    except ResourceError as error:
        pytest.skip(f"needs an Ascend NPU with torch_npu and CANN: {error.message}")


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_an_implementation_agrees_with_its_reference(name: str, run: Run) -> None:
    assert verify(OPERATORS[name], run, "bfloat16").failure is None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_as_near_to_float32_as_bfloat16_allows(family: str, run: Run, tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    oracle = recorded(family)
    subject, reference = Side("npu", "bfloat16"), Side("cpu", "float32")
    found = measure(str(FIXTURES / family), oracle["prompt"].tolist(), subject, reference, (0,), settings)

    assert found.mean_error <= 1.5 * np.abs(oracle["logits_bf16"] - oracle["logits_fp32"]).mean()


def test_the_three_legs_carry(run: Run, tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    reports: list[LegReport] = []
    climbed = climb(str(FIXTURES / "qwen3"), settings, reports.append, device="npu", max_context=512)

    assert climbed.failed_leg is None
    assert ["driver", "operators", "framework"] == [report.leg for report in reports]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_replayed_decode_is_the_step_call_by_call_and_no_step_reserves_memory(family: str, run: Run) -> None:
    import torch

    from tests.ascend.tiny_npu import DECODES, bind, call_by_call, step

    plan = bind(family)
    reserved = torch.npu.memory_reserved()

    assert plan.not_captured is None
    for chunks in ([(0, 0, 30), (1, 0, 9)], [(0, 30, 1), (1, 9, 1), (2, 0, 1)], [(1, 10, 1)], [(0, 31, 1), (1, 11, 5)]):
        batch = step(chunks)
        logits = plan.run(batch).copy()
        assert reserved == torch.npu.memory_reserved()
        if all(count == 1 for _, _, count in chunks):
            np.testing.assert_array_equal(call_by_call(plan, batch, DECODES), logits)
            reserved = torch.npu.memory_reserved()  # the step call by call may have taken more
