"""Every Triton kernel × dtype × tile passes Huawei's compiler up to memory planning; what cannot fit is named."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ascendnpuir", reason="ascendnpu-ir is missing: pip install -r ascend/requirements.txt")

import triton
import triton.language as tl

from ascend.lower.__main__ import main
from ascend.lower.cases import DTYPES, Case, cases
from ascend.lower.offsets import narrow_offsets
from ascend.lower.stages import describe, lower, plan_memory
from ascend.lower.toolchain import LoweringError, missing_host_tools
from trivet.base.errors import ConfigError
from trivet.operators.triton.families import KERNELS
from trivet.operators.triton.launch import Launch, Size, Stride
from trivet.operators.triton.tiles import L0C_BYTES, L1_BYTES, SOCS, UB_BYTES, soc_named

_SOC = "Ascend910B3"
_CASES = [case for dtype in DTYPES for case in cases(dtype, soc_named(_SOC))]


def _of(group: str, dtype: str) -> Case:
    """The last case listed: the largest shape."""
    return [case for case in _CASES if case.group == group and case.dtype == dtype][-1]


@pytest.mark.parametrize("case", _CASES, ids=lambda case: describe(case.launch, case.dtypes))
def test_every_tile_fits_and_addresses_are_64_bit(case: Case) -> None:
    lowered = lower(case.launch, case.dtypes, _SOC)
    planned = plan_memory(lowered, _SOC, describe(case.launch, case.dtypes))

    assert [] == narrow_offsets(lowered.ttir)
    assert planned.used_bytes
    for memory, size in (("UB", UB_BYTES), ("L1", L1_BYTES), ("L0C", L0C_BYTES)):
        assert planned.used_bytes.get(memory, 0) <= size


@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend910B4", "Ascend910_9391"])
def test_the_fullest_kernel_fits_the_other_chips(soc: str) -> None:
    case = _of("attention", "float32")

    assert plan_memory(lower(case.launch, case.dtypes, soc), soc, "attention").used_bytes["UB"] <= UB_BYTES


@pytest.mark.parametrize("name", list(SOCS))
def test_the_table_of_chips_is_the_compilers(name: str) -> None:
    case = _of("take_rows", "float16")
    module = plan_memory(lower(case.launch, case.dtypes, name), name, name).module

    for key, value in (
        ("CUBE_CORE_COUNT", SOCS[name].cube_cores),
        ("VECTOR_CORE_COUNT", SOCS[name].vector_cores),
        ("UB_SIZE", UB_BYTES * 8),
        ("L1_SIZE", L1_BYTES * 8),
        ("L0C_SIZE", L0C_BYTES * 8),
    ):
        assert f'"{key}", {value} : i32' in module


def test_attention_streams_keys_and_values() -> None:
    case = _of("attention", "bfloat16")
    module = plan_memory(lower(case.launch, case.dtypes, _SOC), _SOC, "attention").module

    # Queries, weights, keys and values alternate between two buffers in L1: a block loads while the last one is used.
    assert 4 == len(re.findall(r"arith\.select .*#hivm\.address_space<cbuf>", module))


def test_a_tile_that_overflows_ub_is_named_with_need_and_have() -> None:
    case = _of("add_rms_norm", "bfloat16")
    launch = replace(case.launch, constants={"WIDTH": 32768, "BLOCK": 32768})
    what = describe(launch, case.dtypes)

    with pytest.raises(LoweringError) as refused:
        plan_memory(lower(launch, case.dtypes, _SOC), _SOC, what)

    assert f"{what}: UB of {_SOC} overflows, the tile needs" in refused.value.message
    assert f"bytes of {UB_BYTES}" in refused.value.message
    assert "add_rms_norm_kernel (bfloat16" in refused.value.message


@triton.jit
def _product_kernel(a: tl.tensor, b: tl.tensor, y: tl.tensor, SIDE: tl.constexpr, DEPTH: tl.constexpr) -> None:
    side, depth = tl.arange(0, SIDE), tl.arange(0, DEPTH)
    left = tl.load(a + side[:, None] * DEPTH + depth[None, :])
    right = tl.load(b + depth[:, None] * SIDE + side[None, :])
    tl.store(y + side[:, None] * SIDE + side[None, :], tl.dot(left, right))


def test_a_tile_that_overflows_l0c_is_named() -> None:
    launch = Launch(_product_kernel, 1, {"a": "a", "b": "b", "y": "y"}, {"SIDE": 256, "DEPTH": 64})
    dtypes = {"a": "float16", "b": "float16", "y": "float32"}

    with pytest.raises(LoweringError, match=f"L0C of {_SOC} overflows, the tile needs 262144 bytes of {L0C_BYTES}"):
        plan_memory(lower(launch, dtypes, _SOC), _SOC, "product")


@triton.jit
def _narrow_rows_kernel(
    x: tl.tensor, y: tl.tensor, num_tokens: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr
) -> None:
    column = tl.arange(0, BLOCK)
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        tl.store(y + token * stride + column, tl.load(x + token * stride + column))


@triton.jit
def _carried_rows_kernel(x: tl.tensor, y: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr) -> None:
    column = tl.arange(0, BLOCK)
    at = 0
    for token in range(tl.num_programs(0)):
        tl.store(y + at + column, tl.load(x + at + column))
        at = token * stride


@pytest.mark.parametrize("kernel", [_narrow_rows_kernel, _carried_rows_kernel])
def test_a_product_in_32_bits_that_becomes_an_address_is_found(kernel: object) -> None:
    arguments = {"x": "x", "y": "y", "num_tokens": Size("x"), "stride": Stride("x")}
    names = {name: argument for name, argument in arguments.items() if name in kernel.arg_names}
    lowered = lower(Launch(kernel, 1, names, {"BLOCK": 64}), {"x": "float16", "y": "float16"}, _SOC)

    found = narrow_offsets(lowered.ttir)

    assert found
    assert all("arith.muli" in sentence and "in 32 bits and becomes an address" in sentence for sentence in found)


def test_what_triton_refuses_is_named() -> None:
    launch = Launch(_product_kernel, 1, {"a": "a", "b": "b", "y": "y"}, {"SIDE": 64, "DEPTH": 64})

    with pytest.raises(LoweringError, match=r"_product_kernel \(float16/float32; SIDE=64, DEPTH=64\): "):
        lower(launch, {"a": "float16", "b": "float32", "y": "float32"}, _SOC)


def test_every_kernel_is_compiled_in_every_float_dtype() -> None:
    wanted = {(kernel.operator, dtype) for kernel in KERNELS for dtype in DTYPES}

    assert wanted <= {(case.group, case.dtype) for case in _CASES}


@pytest.mark.skipif(missing_host_tools() is not None, reason=missing_host_tools() or "")
def test_the_command_writes_what_was_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    status = main(["--soc", _SOC, "--group", "add", "--out", "shown.json"])
    shown = json.loads((tmp_path / "shown.json").read_text())

    assert 0 == status
    assert {
        "socs": 1,
        "dtypes": 3,
        "kernels": 1,
        "tiles": 6,
        "compilations": 6,
        "agreements": 15,
        "failures": 0,
    } == shown["count"]
    assert 1 == main(["--soc", _SOC, "--group", "nothing", "--out", "nothing.json"])
    assert 2 == main(["--soc", "Ascend310P3"])


def test_a_chip_without_tiles_is_refused() -> None:
    with pytest.raises(ConfigError, match="soc Ascend310P3 has no tiles"):
        soc_named("Ascend310P3")
