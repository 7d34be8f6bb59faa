"""Matrices on the cube core: multiplied right in every dtype and size, and what the compiler gets wrong is found."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ascendnpuir", reason="ascendnpu-ir is missing: pip install -r ascend/requirements.txt")

import triton
import triton.language as tl

from ascend.hivm.agree import Ran, run
from ascend.hivm.execute import execute
from ascend.hivm.mutants import outcomes
from ascend.hivm.order import Access
from ascend.hivm.program import HivmError, parse
from ascend.lower.cases import DTYPES
from trivet.base.dtypes import Array, DType, cast
from trivet.operators.samples import normal
from trivet.operators.triton.launch import Launch

_SOC = "Ascend910B3"


@triton.jit
def _product_kernel(
    a: tl.tensor, b: tl.tensor, y: tl.tensor, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr
) -> None:
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(y + m[:, None] * N + n[None, :], tl.dot(left, right, input_precision="ieee"))


@triton.jit
def _transposed_kernel(
    a: tl.tensor, b: tl.tensor, y: tl.tensor, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr
) -> None:
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + n[:, None] * K + k[None, :])
    tl.store(y + m[:, None] * N + n[None, :], tl.dot(left, tl.trans(right), input_precision="ieee"))


@triton.jit
def _three_axes_kernel(
    a: tl.tensor, b: tl.tensor, y: tl.tensor, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr
) -> None:
    """`a` as [M/2, 2, K], which is the same bytes."""
    m, k, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    pair, half = tl.arange(0, M // 2), tl.arange(0, 2)
    left = tl.load(a + pair[:, None, None] * (2 * K) + half[None, :, None] * K + k[None, None, :]).reshape(M, K)
    right = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(y + m[:, None] * N + n[None, :], tl.dot(left, right, input_precision="ieee"))


def _product(kernel: object, m: int, k: int, n: int, dtype: DType) -> tuple[Ran, Array, Array]:
    """The run, what was made, and what was wanted."""
    rng = np.random.default_rng(m + k + n)
    a, b = normal(rng, (m, k), dtype), normal(rng, (n, k) if kernel is _transposed_kernel else (k, n), dtype)
    y = np.full((m, n), np.nan, np.float32)
    kinds: dict[str, DType] = {"a": dtype, "b": dtype, "y": "float32"}
    ran = run(Launch(kernel, 1, {"a": "a", "b": "b", "y": "y"}, {"M": m, "K": k, "N": n}), {"a": a, "b": b, "y": y},
              kinds, _SOC, 1)  # fmt: skip
    wide_a, wide_b = (cast(array, dtype, "float32").astype(np.float64) for array in (a, b))
    return ran, y, wide_a @ (wide_b.T if kernel is _transposed_kernel else wide_b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", [_product_kernel, _transposed_kernel])
@pytest.mark.parametrize(("m", "k", "n"), [(16, 16, 16), (32, 64, 16), (16, 32, 128), (64, 512, 32)])
def test_products_are_right_and_no_pipe_races(kernel: object, m: int, k: int, n: int, dtype: DType) -> None:
    ran, made, wanted = _product(kernel, m, k, n, dtype)

    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-4)
    assert [] == ran.faults


def test_a_long_product_goes_through_both_halves_of_l0() -> None:
    ran, _, _ = _product(_product_kernel, 64, 512, 32, "float32")
    loads = [event for event in ran.traces[0] if isinstance(event, Access) and event.pipe.name == "PIPE_MTE1"]
    firsts = [load.writes[0].at.start for load in loads if isinstance(load.writes[0].at, slice)]

    assert {0, 32 * 1024} == set(firsts)
    assert 4 < len(loads) == len(firsts)


def test_each_flag_of_a_product_dropped_whole_races() -> None:
    ran, _, _ = _product(_product_kernel, 32, 64, 16, "float16")
    judged = outcomes(ran.traces[0], ran.sizes)

    assert 3 == sum("race" in outcome.seen for outcome in judged if outcome.mutant.kind == "flag")
    assert {"barrier"} == {outcome.mutant.kind for outcome in judged if not outcome.seen}


def test_a_matrix_loaded_by_three_axes_lies_wrong_in_l1_and_is_found() -> None:
    with pytest.raises(AssertionError, match="32 rows are multiplied, a in L1 has 16"):
        _product(_three_axes_kernel, 32, 16, 16, "float16")


_WAITS = """
"builtin.module"() ({
  "func.func"() <{sym_name = "k_mix_aic"}> ({
  ^bb0(%arg0: i64, %arg1: memref<?xi8, #hivm.address_space<gm>>, %arg2: memref<?xi8, #hivm.address_space<gm>>, \
%arg4: i32, %arg5: i32, %arg6: i32):
    "hivm.hir.sync_block_wait"() <{pipe = #hivm.pipe<PIPE_S>, static_flag_id = 1 : i64}> : () -> ()
    "func.return"() : () -> ()
  }) {hivm.func_core_type = #hivm.func_core_type<AIC>} : () -> ()
  "func.func"() <{sym_name = "k_mix_aiv"}> ({
  ^bb0(%arg0: i64, %arg1: memref<?xi8, #hivm.address_space<gm>>, %arg2: memref<?xi8, #hivm.address_space<gm>>, \
%arg4: i32, %arg5: i32, %arg6: i32):
    "hivm.hir.sync_block_set"(%arg0) <{pipe = #hivm.pipe<PIPE_S>, static_flag_id = FLAG : i64, \
tpipe = #hivm.pipe<PIPE_MTE3>}> : (i64) -> ()
    "func.return"() : () -> ()
  }) {hivm.func_core_type = #hivm.func_core_type<AIV>} : () -> ()
}) : () -> ()
"""


class _Kernel:
    """Stands for a function under triton.jit: only the names of its parameters are asked for."""

    arg_names = ()


def test_a_core_that_is_never_told_hangs_and_says_so() -> None:
    launch = Launch(_Kernel, 1, {}, {})

    assert 3 == len(execute(parse(_WAITS.replace("FLAG", "1"), "k"), launch, {}, 0))
    with pytest.raises(HivmError, match="k hangs: AIC waits for block flag 1 in line 5"):
        execute(parse(_WAITS.replace("FLAG", "2"), "k"), launch, {}, 0)
