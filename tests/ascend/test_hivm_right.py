"""Scheduled kernels, executed with their addresses and flags, agree with their contracts and never race."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ascendnpuir", reason="ascendnpu-ir is missing: pip install -r ascend/requirements.txt")

import triton
import triton.language as tl

from ascend.hivm.__main__ import main, mutated_sample, reasons
from ascend.hivm.agree import Ran, run_sample
from ascend.hivm.execute import execute
from ascend.hivm.mutants import outcomes
from ascend.hivm.order import Access
from ascend.hivm.schedule import schedule
from ascend.lower.agreement import operand_dtypes, samples_in
from ascend.lower.cases import DTYPES
from ascend.lower.stages import lower, plan_memory
from trivet.base.dtypes import DType
from trivet.operators.contract import operator_named
from trivet.operators.triton.families import KERNELS
from trivet.operators.triton.launch import Kernel, Launch, Size, Stride
from trivet.operators.triton.tiles import soc_named

_SOC = soc_named("Ascend910B3")
_KERNELS = {kernel.operator: kernel for kernel in KERNELS}


def _alone(kernel: Kernel, dtype: DType) -> Ran:
    """The sample that goes round its buffers, as one program."""
    return run_sample(kernel, mutated_sample(operator_named(kernel.operator), dtype), _SOC.name, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", list(_KERNELS))
def test_values_are_the_contracts_and_no_pipe_races(operator: str, dtype: DType) -> None:
    for sample in list(samples_in(operator_named(operator), dtype))[-3:]:
        ran = run_sample(_KERNELS[operator], sample, _SOC.name, 3)

        assert [] == reasons(ran), ran.what


@pytest.mark.parametrize("operator", list(_KERNELS))
def test_a_flag_dropped_whole_races_or_was_not_needed(operator: str) -> None:
    ran = _alone(_KERNELS[operator], "bfloat16")
    judged = outcomes(ran.traces[0], ran.sizes)

    assert any("race" in outcome.seen for outcome in judged if outcome.mutant.kind == "flag")
    for outcome in judged:
        if outcome.mutant.kind in ("set", "wait", "block set", "block wait"):
            assert outcome.seen, outcome.mutant
        assert bool(outcome.seen) != bool(outcome.reason)


def test_a_buffer_moved_onto_another_is_found() -> None:
    ran = _alone(_KERNELS["silu_mul"], "float32")
    loads = [event for event in ran.traces[0] if isinstance(event, Access) and event.pipe.name == "PIPE_MTE2"]
    first = loads[0].writes[0]
    moved = [
        replace(event, writes=(first,)) if isinstance(event, Access) and event.line == loads[1].line else event
        for event in ran.traces[0]
    ]

    assert any(fault.kind == "race" for fault in replace(ran, traces=[moved]).faults)


@triton.jit
def _copy_rows_kernel(
    x: tl.tensor, y: tl.tensor, num_tokens: tl.tensor, x_stride: tl.tensor, BLOCK: tl.constexpr, WIDE: tl.constexpr
) -> None:
    column = tl.arange(0, BLOCK)
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        row = token.to(tl.int64) * x_stride if WIDE else token * x_stride
        tl.store(y + token * BLOCK + column, tl.load(x + row + column))


def test_a_planted_overflow_of_32_bits_leaves_its_operand_and_is_found(tmp_path: Path) -> None:
    with (tmp_path / "far").open("wb") as file:
        file.truncate(3 * 2**30 * 2)  # sparse
    far = np.memmap(tmp_path / "far", np.float16, "r+", shape=(3, 2**30))
    far[2, :16] = 1
    arguments = {"x": "x", "y": "y", "num_tokens": Size("x"), "x_stride": Stride("x")}

    def copied(is_wide: bool) -> list[float]:
        launch = Launch(_copy_rows_kernel, 1, arguments, {"BLOCK": 16, "WIDE": is_wide})
        lowered = lower(launch, {"x": "float16", "y": "float16"}, _SOC.name)
        y = np.zeros((3, 16), np.float16)
        execute(schedule(lowered, _SOC.name, "copy_rows"), launch, {"x": far, "y": y}, 0)
        return list(y[2])

    assert [1] * 16 == copied(True)
    with pytest.raises(AssertionError, match=rf"x\[-{2**32}…\] 16 f16 is outside its {far.nbytes} bytes"):
        copied(False)


def test_the_schedule_is_of_the_memory_that_was_planned() -> None:
    kernel = _KERNELS["rms_norm"]
    operator = operator_named("rms_norm")
    sample = mutated_sample(operator, "bfloat16")
    launch, dtypes = kernel.launch(sample.call, sample.sizes, _SOC), operand_dtypes(operator, sample.call)
    planned = plan_memory(lower(launch, dtypes, _SOC.name), _SOC.name, "rms_norm").used_bytes["UB"]
    accesses = [event for event in _alone(kernel, "bfloat16").traces[0] if isinstance(event, Access)]
    ends = [
        footprint.at.stop
        for access in accesses
        for footprint in (*access.reads, *access.writes)
        if footprint.memory == "AIV UB" and isinstance(footprint.at, slice)
    ]

    assert planned == max(ends)


def test_the_run_writes_what_it_counted(tmp_path: Path) -> None:
    out = tmp_path / "hivm.json"

    assert 0 == main(["--operator", "add", "--out", str(out)])
    fragment = json.loads(out.read_text())
    assert 15 == fragment["agreements"]["add"]
    assert 0 < fragment["count"]["mutants_caught_as_races"] < fragment["count"]["mutants_caught"]
    assert 1 == main(["--operator", "nothing", "--out", str(out)])
