"""Shapes and formats of what the implementations make, by torch_npu's own Meta kernels. Needs torch_npu, and no CANN.

Run with TORCH_DEVICE_BACKEND_AUTOLOAD=0, or `import torch` itself looks for CANN.
"""

import ctypes
import json
import sysconfig
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from ascend.schemas.dump import FOLDER
from ascend.schemas.fake import made, sample_cases, takes, wanted
from ascend.schemas.models import CONFIGS, SIZES, model_cases
from ascend.schemas.signature import parse
from ascend.schemas.stubs import build
from trivet.base.errors import GraphError
from trivet.framework.graph.passes import MAX_LEVEL
from trivet.operators import npu
from trivet.operators.contract import IMPLEMENTATIONS, OPERATORS, Implementation, choose


def fused(operator: str) -> list[Implementation]:
    """Those that are the device's own, without PyTorch's."""
    return [one for one in IMPLEMENTATIONS[operator, "npu"] if one.variant != "torch"]


def registered() -> dict[str, str]:
    """The signatures that the installed torch_npu has registered, by name and overload."""
    found = [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("npu::")]
    return {".".join(filter(None, (one.name[5:], one.overload_name))): str(one) for one in found}


def test_what_was_read_from_the_wheel_is_what_it_registers() -> None:
    stored = json.loads((FOLDER / f"{version('torch_npu')}.json").read_text())["operators"]
    ours = registered()

    assert len(stored) > 100
    for name, text in stored.items():
        assert ours[name] == str(torch._C.parse_schema(f"npu::{text}")), name


def test_our_reader_of_signatures_agrees_with_pytorchs() -> None:
    for path in FOLDER.glob("*.json"):
        for name, text in json.loads(path.read_text())["operators"].items():
            theirs = torch._C.parse_schema(f"npu::{text}").arguments
            ours = parse(text).arguments

            assert [(one.name, one.has_default_value()) for one in theirs] == [
                (one.name, one.default is not None) for one in ours
            ], name


def test_every_operator_has_an_implementation_and_pytorchs_is_the_last() -> None:
    for operator in OPERATORS:
        variants = [one.variant for one in IMPLEMENTATIONS[operator, "npu"]]

        assert "torch" == variants[-1], operator
        assert len(set(variants)) == len(variants), operator


@pytest.mark.parametrize("operator", [name for name in OPERATORS if fused(name)])
def test_outputs_of_the_contracts_samples_are_shaped_as_the_contract_says(operator: str) -> None:
    taken = [
        (implementation, case)
        for case in sample_cases()
        for implementation in fused(operator)
        if case.call.operator == operator and takes(implementation, case)
    ]

    assert len(taken) > 0
    for implementation, case in taken:
        assert wanted(case) == made(implementation, case), (implementation.variant, case.call)


VARIANTS = {
    "add": {"one addition"},
    "add_rms_norm": {"npu_add_rms_norm"},
    "kv_store": {"npu_scatter_pa_kv_cache"},
    "linear": {"one format"},
    "rms_norm": {"npu_rms_norm"},
    "rope": {"npu_rotary_mul"},
    "rope_kv_store": {"npu_mrope"},
    "silu_mul": {"npu_swiglu"},
}


@pytest.mark.parametrize("level", range(MAX_LEVEL + 1))
@pytest.mark.parametrize("name", CONFIGS)
def test_every_node_of_a_model_runs_on_the_devices_own_operators(name: str, level: int) -> None:
    expected = VARIANTS | {"attention": {"batched" if name == "qwen2.5-0.5b" else "ragged"}}
    for case in model_cases(name, level):
        chosen = choose(case.call, "npu")

        assert isinstance(chosen, Implementation)
        assert chosen.variant in expected.get(case.call.operator, {"torch"}), case.call.operator
        assert wanted(case) == made(chosen, case), case.call


def test_a_shape_that_is_not_the_contracts_is_seen() -> None:
    right = IMPLEMENTATIONS["silu_mul", "npu"][0]
    wrong = replace(right, lower=lambda call, sizes: lambda inputs, lengths: [inputs[0][:, :1]])
    case = next(case for case in sample_cases() if case.call.operator == "silu_mul" and case.sizes["tokens"] == 3)

    assert wanted(case) == made(right, case)
    assert wanted(case) != made(wrong, case)


def test_a_keyword_that_the_operator_does_not_know_is_an_error_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real = npu.norm.torch_npu.npu_rms_norm
    monkeypatch.setattr(
        npu.norm.torch_npu, "npu_rms_norm", lambda input, gamma, epsilon: real(input=input, gamma=gamma, eps=epsilon)
    )
    case = next(case for case in sample_cases() if case.call.operator == "rms_norm")

    with pytest.raises(RuntimeError, match="Unknown keyword argument 'eps'"):
        made(IMPLEMENTATIONS["rms_norm", "npu"][0], case)


def test_a_plan_with_slots_that_are_no_blocks_of_the_device_is_refused() -> None:
    case = next(case for case in model_cases("llama-3-8b", MAX_LEVEL) if case.call.operator == "attention")
    ragged = IMPLEMENTATIONS["attention", "npu"][0]

    with pytest.raises(GraphError, match="slots of 24 tokens, wanted a multiple of 16 up to 1024"):
        made(ragged, replace(case, sizes=SIZES | {"slot_tokens": 24}))


def test_a_stand_in_for_cann_refuses_whatever_is_not_needed_to_ask_for_shapes(tmp_path: Path) -> None:
    functions = build(Path(sysconfig.get_path("purelib")), tmp_path)
    library = max(tmp_path.glob("*.so"), key=lambda path: path.stat().st_size)  # the others are empty
    loaded, answer = ctypes.CDLL(str(library)), ctypes.c_uint(0)

    assert 0 == loaded.aclrtGetDeviceCount(ctypes.byref(answer))
    assert 1 == answer.value
    for name in set(functions) - {"aclrtGetDeviceCount"}:
        assert 207000 == loaded[name](ctypes.byref(answer)), name
