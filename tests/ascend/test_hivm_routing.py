"""Scheduled kernels without a contract (routing, sampling), executed with addresses and flags: right, and no races."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ascendnpuir", reason="ascendnpu-ir is missing: pip install -r ascend/requirements.txt")

from ascend.hivm.agree import run
from ascend.hivm.program import HivmError
from ascend.lower.cases import DTYPES
from tests.ascend.routing import router_case
from trivet.base.dtypes import Array, DType, cast
from trivet.operators.samples import normal
from trivet.operators.triton import moe, router, sample
from trivet.operators.triton.launch import Launch
from trivet.operators.triton.tiles import soc_named

_SOC = soc_named("Ascend910B3")


def _run(launches: tuple[Launch, ...], operands: dict[str, Array], dtypes: dict[str, DType]) -> None:
    """In place, as at most two programs. Fails on a race, within a program or between the two."""
    for launch in launches:
        ran = run(launch, operands, dtypes, _SOC.name, min(2, launch.programs))

        assert [] == ran.faults, ran.what


@pytest.mark.parametrize(("num_experts", "chosen"), [(8, 2), (60, 4), (256, 8)])
def test_the_router_takes_the_highest_and_the_lower_of_equals(num_experts: int, chosen: int) -> None:
    operands, wanted, shares = router_case(num_experts, chosen, True)

    launch = router.router_topk(num_experts, chosen, True, _SOC)
    _run((launch,), operands, {"logits": "float32", "weights": "float32", "experts": "int32"})

    np.testing.assert_array_equal(wanted, operands["experts"])
    np.testing.assert_allclose(np.take_along_axis(shares, wanted, 1), operands["weights"], atol=2e-7)


def _order(num_experts: int, num_tokens: int) -> tuple[dict[str, Array], Array]:
    """Operands of `moe.order` for two experts a token, and the places that are wanted."""
    experts = np.random.default_rng(2).integers(0, num_experts, num_tokens * 2).astype(np.int32)
    places = np.empty(len(experts), np.int32)
    places[np.argsort(experts, kind="stable")] = np.arange(len(experts))
    blocks = (moe.block_count(len(experts), num_experts), num_experts)
    operands = {
        "experts": experts,
        "places": np.full_like(places, -1),
        "ends": np.full(num_experts, -1, np.int32),
        "counts": np.full(blocks, -1, np.int32),
        "offsets": np.full(blocks, -1, np.int32),
    }
    return operands, places


@pytest.mark.parametrize(("num_experts", "num_tokens"), [(8, 1), (8, 70), (256, 21)])
def test_pairs_are_ordered_by_expert_stably(num_experts: int, num_tokens: int) -> None:
    operands, places = _order(num_experts, num_tokens)

    _run(moe.order(num_experts, _SOC), operands, dict.fromkeys(operands, "int32"))

    np.testing.assert_array_equal(places, operands["places"])
    np.testing.assert_array_equal(np.cumsum(np.bincount(operands["experts"], minlength=num_experts)), operands["ends"])


def test_a_buffer_of_two_addresses_outside_a_loop_is_refused() -> None:
    operands, _ = _order(60, 37)

    with pytest.raises(HivmError, match="at 2 addresses is not known here"):
        _run(moe.order(60, _SOC), operands, dict.fromkeys(operands, "int32"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_go_to_their_places_and_come_back_weighted(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    x, weights = normal(rng, (37, 33), dtype), rng.random((37, 2), np.float32)
    places = rng.permutation(74).astype(np.int32)
    moved = {"x": x, "places": places, "y": np.zeros((74, 33), x.dtype)}
    back = {"x": moved["y"], "places": places, "weights": weights, "y": np.zeros_like(x)}
    kinds: dict[str, DType] = {"x": dtype, "y": dtype, "places": "int32", "weights": "float32"}

    _run((moe.permute(33, 2, dtype, _SOC),), moved, kinds)
    _run((moe.unpermute(33, 2, dtype, _SOC),), back, kinds)

    np.testing.assert_array_equal(np.repeat(x, 2, axis=0), moved["y"][places])
    wide = cast(x, dtype, "float32")
    wanted = wide * weights[:, :1] + wide * weights[:, 1:]
    rtol = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    np.testing.assert_allclose(cast(back["y"], dtype, "float32"), wanted, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize(("vocab_size", "count"), [(1, 1), (40, 7), (5001, 20)])
def test_the_highest_logits_come_first_and_the_lower_of_equals(vocab_size: int, count: int) -> None:
    logits = np.random.default_rng(4).standard_normal((3, vocab_size)).astype(np.float16).round(1)
    logits[1, 1:] = -np.inf
    wanted = np.argsort(-logits.astype(np.float32), axis=1, kind="stable")[:, :count]
    room = sample.candidates(vocab_size, count)
    operands = {
        "logits": logits,
        "candidate_values": np.full((3, room), np.nan, np.float32),
        "candidate_tokens": np.full((3, room), -1, np.int32),
        "values": np.full((3, count), np.nan, np.float32),
        "tokens": np.full((3, count), -1, np.int32),
    }
    kinds: dict[str, DType] = {"logits": "float16", "candidate_values": "float32", "values": "float32"}

    _run(sample.top(vocab_size, count, "float16", _SOC), operands, dict.fromkeys(operands, "int32") | kinds)

    np.testing.assert_array_equal(wanted, operands["tokens"])
    np.testing.assert_array_equal(np.take_along_axis(logits, wanted, 1).astype(np.float32), operands["values"])
