"""The same kernels under plain Triton: compiled for NVIDIA, interpreted on the CPU, and run where there is a GPU.

In an environment of its own (`ascend/requirements-triton-plain.txt`): triton-ascend owns the same module name.
"""

from __future__ import annotations

import importlib.metadata
import os

import pytest

pytest.importorskip("triton", reason="Triton is missing: pip install -r ascend/requirements-triton-plain.txt")
pytest.importorskip("torch", reason="PyTorch is missing: pip install -r ascend/requirements-triton-plain.txt")

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ascend.lower.cases import Case, cases
from ascend.lower.stages import signature
from trivet.base.dtypes import DType
from trivet.base.errors import ConfigError
from trivet.operators.contract import operator_named
from trivet.operators.torch.sample import on_torch
from trivet.operators.triton.families import KERNELS
from trivet.operators.triton.routine import ROUTINES
from trivet.operators.triton.run import register, soc_of
from trivet.operators.triton.tiles import Soc
from trivet.operators.verify import verify

_NAMES = {found.metadata["Name"].lower() for found in importlib.metadata.distributions()}
_IS_ASCEND = bool(_NAMES & {"triton-ascend", "triton_ascend"})
_IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_FEW = Soc("few", "GPU", 2, 3)  # fewer programs than rows, so that each takes several
_OPERATORS = [each.operator for each in (*KERNELS, *ROUTINES)]

pytestmark = pytest.mark.skipif(_IS_ASCEND, reason="this environment's Triton is triton-ascend")


def _largest() -> list[Case]:
    return list({case.launch.kernel.__name__: case for case in cases("bfloat16", _FEW)}.values())


@pytest.mark.skipif(_IS_INTERPRETED, reason="compiles only without TRITON_INTERPRET=1")
@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles_for_nvidia(capability: int) -> None:
    for case in _largest():
        source = ASTSource(case.launch.kernel, signature(case.launch, case.dtypes), dict(case.launch.constants))

        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))

        assert compiled.asm["cubin"], case.launch.kernel.__name__


@pytest.mark.skipif(not _IS_INTERPRETED, reason="interprets only with TRITON_INTERPRET=1")
@pytest.mark.parametrize("operator", _OPERATORS)
def test_interpreted_kernels_agree_with_their_contracts_in_float32(operator: str) -> None:
    # In float32 alone: the interpreter's bfloat16 products are of bit patterns.
    register(f"interpreted {operator}", _FEW)

    verdict = verify(operator_named(operator), on_torch("cpu", f"interpreted {operator}"))

    assert verdict.passed, verdict.failure


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("activations", ["float32", "bfloat16"])
@pytest.mark.parametrize("operator", _OPERATORS)
def test_kernels_on_a_gpu_agree_with_their_contracts(operator: str, activations: DType) -> None:
    registered = f"gpu {operator} {activations}"
    register(registered, soc_of(torch.device("cuda")))

    verdict = verify(operator_named(operator), on_torch("cuda", registered), activations)

    assert verdict.passed, verdict.failure


def test_a_cpu_has_no_tiles() -> None:
    with pytest.raises(ConfigError, match="soc cpu has no tiles"):
        soc_of(torch.device("cpu"))
