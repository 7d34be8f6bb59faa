"""The lowered Triton kernels, run on this host, agree with their contracts; planted faults do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ascendnpuir", reason="ascendnpu-ir is missing: pip install -r ascend/requirements.txt")

import triton
import triton.language as tl

from ascend.lower.agreement import Agreement, samples_in
from ascend.lower.cases import DTYPES
from ascend.lower.host import build, execute
from ascend.lower.right import check, run
from ascend.lower.stages import lower
from ascend.lower.toolchain import missing_host_tools
from tests.ascend.routing import router_case
from trivet.base.dtypes import Array, DType, cast
from trivet.operators.contract import Call, Sample, TensorSpec, operator_named
from trivet.operators.samples import normal
from trivet.operators.triton import moe, router, sample
from trivet.operators.triton.families import KERNELS
from trivet.operators.triton.launch import Launch
from trivet.operators.triton.tiles import soc_named

pytestmark = pytest.mark.skipif(missing_host_tools() is not None, reason=missing_host_tools() or "")

_SOC = soc_named("Ascend910B3")
_CACHE = Path(__file__).parents[2] / "build" / "ascend" / "triton"
_KERNELS = {kernel.operator: kernel for kernel in KERNELS}


def _bound(operator: str, given: Sample) -> Launch:
    return _KERNELS[operator].launch(given.call, given.sizes, _SOC)


def _check(operator: str, given: Sample, launch: Launch) -> Agreement:
    return check(launch, operator_named(operator), given, _SOC.name, _CACHE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", list(_KERNELS))
def test_every_sample_agrees_with_the_contract(operator: str, dtype: DType) -> None:
    for given in samples_in(operator_named(operator), dtype):
        assert _KERNELS[operator].refuse(given.call) is None

        agreement = _check(operator, given, _bound(operator, given))

        assert agreement.failure is None, agreement.what


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scale_left_at_one_is_found(dtype: DType) -> None:
    given = list(samples_in(operator_named("attention"), dtype))[2]
    launch = _bound("attention", given)
    wrong = replace(launch, arguments={**launch.arguments, "scale": 1.0})

    agreement = _check("attention", given, wrong)

    assert agreement.failure is not None


@pytest.mark.parametrize("operator", ["attention", "rope_kv_store"])
def test_sequences_without_tokens_take_no_part(operator: str) -> None:
    given = list(samples_in(operator_named(operator), "bfloat16"))[1]
    starts, slots = given.inputs[-2], given.inputs[-1]
    assert starts is not None and slots is not None
    empty = np.array([starts[0], *starts[:2], starts[1], *starts[2:], starts[-1]], starts.dtype)
    unused = np.full_like(slots[:1], 2**30)  # reading through it would end this process
    spread = np.concatenate([unused, slots[:1], unused, slots[1:], unused])
    sizes = {**given.sizes, "sequences": len(spread), "sequence_starts": len(empty), "max_slots": slots.shape[1]}
    padded = Sample(given.call, (*given.inputs[:-2], empty, spread), sizes)

    agreement = _check(operator, padded, _bound(operator, padded))

    assert agreement.failure is None


def test_tokens_past_the_last_sequence_are_not_stored() -> None:
    operator = operator_named("rope_kv_store")
    given = list(samples_in(operator, "float32"))[1]
    starts, slots, cache = given.inputs[-2], given.inputs[-1], given.inputs[4]
    assert starts is not None and slots is not None and cache is not None
    fewer = replace(given, inputs=(*given.inputs[:-2], starts[:1], slots[:0]))

    left = run(_bound("rope_kv_store", fewer), operator, fewer, _SOC.name, _CACHE)["cache'"]

    assert cache.tobytes() == left.tobytes()


@triton.jit
def _interleaved_rope_kernel(
    x: tl.tensor,
    angles: tl.tensor,
    y: tl.tensor,
    num_tokens: tl.tensor,
    x_stride: tl.tensor,
    angles_stride: tl.tensor,
    y_stride: tl.tensor,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
) -> None:
    pair = tl.arange(0, BLOCK)
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        cos = tl.load(angles + token * angles_stride + pair, mask=pair < HALF, other=0.0)
        sin = tl.load(angles + token * angles_stride + HALF + pair, mask=pair < HALF, other=0.0)
        for head in range(NUM_HEADS):
            at = head * HEAD_DIM + 2 * pair
            first = tl.load(x + token * x_stride + at, mask=pair < HALF, other=0.0).to(tl.float32)
            second = tl.load(x + token * x_stride + at + 1, mask=pair < HALF, other=0.0).to(tl.float32)
            turned, other = first * cos - second * sin, second * cos + first * sin
            tl.store(y + token * y_stride + at, turned.to(y.dtype.element_ty), mask=pair < HALF)
            tl.store(y + token * y_stride + at + 1, other.to(y.dtype.element_ty), mask=pair < HALF)


def test_a_rope_in_interleaved_order_is_found() -> None:
    given = list(samples_in(operator_named("rope"), "bfloat16"))[2]
    wrong = replace(_bound("rope", given), kernel=_interleaved_rope_kernel)

    agreement = _check("rope", given, wrong)

    assert agreement.failure is not None
    assert agreement.failure.startswith("y[")


@triton.jit
def _wide_add_kernel(
    a: tl.tensor,
    b: tl.tensor,
    y: tl.tensor,
    num_tokens: tl.tensor,
    a_stride: tl.tensor,
    b_stride: tl.tensor,
    y_stride: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    column = tl.arange(0, BLOCK)
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        left, right = tl.load(a + token * a_stride + column), tl.load(b + token * b_stride + column)
        tl.store(y + token * y_stride + column, left + right, mask=column < WIDTH + 1)


def test_a_write_past_a_row_is_found() -> None:
    given = list(samples_in(operator_named("add"), "float32"))[1]
    wrong = replace(_bound("add", given), kernel=_wide_add_kernel)

    with pytest.raises(AssertionError, match="_wide_add_kernel wrote outside y"):
        _check("add", given, wrong)


def test_the_number_of_programs_does_not_change_a_bit() -> None:
    for operator in _KERNELS:
        given = list(samples_in(operator_named(operator), "float16"))[-1]
        launch = _bound(operator, given)
        alone, many = (
            run(replace(launch, programs=programs), operator_named(operator), given, _SOC.name, _CACHE)
            for programs in (1, 7)
        )

        for name, array in alone.items():
            assert array.tobytes() == many[name].tobytes(), operator


def _attend(q: Array, cache: Array, past: list[int], starts: list[int], slots: Array) -> Array:
    """One step of attention in bfloat16: 6 query heads of 32 over 2 kv heads, slots of 16 tokens."""
    rows = TensorSpec(("tokens", 192), "bfloat16")
    batch = (
        TensorSpec(("tokens",), "int32"),
        TensorSpec(("sequence_starts",), "int32"),
        TensorSpec(("sequences", "max_slots"), "int32"),
    )
    stored = TensorSpec(("num_slots", "slot_tokens", 2, 2, 32), "bfloat16", "blocks")
    call = Call("attention", (rows, stored, *batch), (rows,), {"scale": 32**-0.5})
    sizes = {"tokens": len(past), "slot_tokens": 16, "num_slots": len(cache)}
    inputs = (q, cache, np.array(past, np.int32), np.array(starts, np.int32), slots)
    given = Sample(call, inputs, sizes)
    return run(_bound("attention", given), operator_named("attention"), given, _SOC.name, _CACHE)["y"]


def test_attention_has_the_same_bits_alone_in_a_batch_and_in_chunks() -> None:
    rng = np.random.default_rng(5)
    cache = normal(rng, (9, 16, 2, 2, 32), "bfloat16")
    q = normal(rng, (40, 192), "bfloat16", 2.0)
    slots = np.array([[4, 0, 7]], np.int32)
    other = np.array([[2, 8, 5]], np.int32)

    whole = _attend(q, cache, list(range(40)), [0, 40], slots)
    parts = [_attend(q[i : i + 9], cache, list(range(i, min(40, i + 9))), [0, len(q[i : i + 9])], slots)
             for i in range(0, 40, 9)]  # fmt: skip
    last = _attend(q[39:], cache, [39], [0, 1], slots)
    batched = _attend(
        np.concatenate([q[:21], q[39:]]), cache, [*range(21), 39], [0, 21, 22], np.concatenate([other, slots])
    )

    assert whole.tobytes() == np.concatenate(parts).tobytes()
    assert whole[39:].tobytes() == last.tobytes()
    assert whole[39:].tobytes() == batched[21:].tobytes()


def _sparse(folder: Path, shape: tuple[int, ...]) -> Array:
    """float16 zeros that take room only where they are touched."""
    return np.memmap(folder / "sparse", np.float16, "w+", shape=shape)


def test_rows_more_than_two_to_the_31_elements_apart_are_reached(tmp_path: Path) -> None:
    rows = TensorSpec(("tokens", 64), "float16")
    call = Call("rms_norm", (rows, TensorSpec((64,), "float32")), (rows,), {"epsilon": 1e-5})
    launch = _KERNELS["rms_norm"].launch(call, {}, _SOC)
    dtypes: dict[str, DType] = {"x": "float16", "weight": "float32", "y": "float16"}
    far = _sparse(tmp_path, (4, 2**30))[:, :64]
    far[3] = 1.0
    y = np.zeros((4, 64), np.float16)

    operands = {"x": far, "weight": np.ones(64, np.float32), "y": y}
    execute(launch, build(lower(launch, dtypes, _SOC.name), _CACHE), operands, programs=2)

    assert 3 * 2**30 > 2**31
    np.testing.assert_allclose(y[3], 1.0, atol=1e-3)


def test_slots_more_than_two_to_the_31_elements_in_are_written_and_read(tmp_path: Path) -> None:
    num_slots, heads, head_dim, slot_tokens = 160_000, 8, 128, 16
    cache = _sparse(tmp_path, (2, num_slots, slot_tokens, heads, head_dim))
    rng = np.random.default_rng(3)
    rows, cached = TensorSpec(("tokens", heads * head_dim), "float16"), TensorSpec(
        ("num_slots", "slot_tokens", 2, heads, head_dim), "float16", "blocks"
    )  # fmt: skip
    batch = tuple(TensorSpec(axes, "int32") for axes in (("tokens",), ("sequence_starts",), ("sequences", "max_slots")))
    angles = TensorSpec(("tokens", head_dim), "float32")
    store = Call("rope_kv_store", (rows, rows, rows, angles, cached, *batch), (rows, cached), {"head_dim": head_dim})
    attend = Call("attention", (rows, cached, *batch), (rows,), {"scale": head_dim**-0.5})
    sizes = {"slot_tokens": slot_tokens}
    unturned = np.concatenate([np.ones((1, 64), np.float32), np.zeros((1, 64), np.float32)], axis=1)
    q, k, v = (normal(rng, (1, heads * head_dim), "float16") for _ in range(3))
    operands = {
        "q": q, "k": k, "v": v, "angles": unturned, "q'": np.zeros_like(q), "y": np.zeros_like(q), "cache": cache,
        "positions": np.zeros(1, np.int32), "starts": np.array([0, 1], np.int32),
        "slots": np.array([[num_slots - 1]], np.int32),
    }  # fmt: skip
    kinds: dict[str, DType] = dict.fromkeys(operands, "float16")
    kinds |= {"angles": "float32", "positions": "int32", "starts": "int32", "slots": "int32"}

    for call in (store, attend):
        launch = _KERNELS[call.operator].launch(call, sizes, _SOC)
        execute(launch, build(lower(launch, kinds, _SOC.name), _CACHE), operands, programs=1)

    assert (num_slots - 1) * slot_tokens * heads * head_dim > 2**31
    assert k.tobytes() == cache[0, -1, 0].tobytes()
    assert v.tobytes() == cache[1, -1, 0].tobytes()
    assert v.tobytes() == operands["y"].tobytes()  # one position: its weight is 1


def _run(launches: tuple[Launch, ...], operands: dict[str, Array], dtypes: dict[str, DType]) -> None:
    for launch in launches:
        execute(launch, build(lower(launch, dtypes, _SOC.name), _CACHE), operands)


@pytest.mark.parametrize(("num_experts", "chosen"), [(8, 2), (60, 4), (256, 8), (3, 3)])
@pytest.mark.parametrize("is_renormalised", [False, True])
def test_the_router_takes_the_highest_and_the_lower_of_equals(
    num_experts: int, chosen: int, is_renormalised: bool
) -> None:
    operands, wanted, shares = router_case(num_experts, chosen, is_renormalised)

    launch = router.router_topk(num_experts, chosen, is_renormalised, _SOC)
    _run((launch,), operands, {"logits": "float32", "weights": "float32", "experts": "int32"})

    np.testing.assert_array_equal(wanted, operands["experts"])
    np.testing.assert_allclose(np.take_along_axis(shares, wanted, 1), operands["weights"], atol=2e-7)


def test_a_nan_logit_makes_every_weight_of_its_token_nan_and_no_expert_invalid() -> None:
    logits = np.zeros((2, 8), np.float32)
    logits[0, 5] = np.nan
    operands = {
        "logits": logits, "weights": np.zeros((2, 2), np.float32), "experts": np.full((2, 2), -1, np.int32)
    }  # fmt: skip

    launch = router.router_topk(8, 2, False, _SOC)
    _run((launch,), operands, {"logits": "float32", "weights": "float32", "experts": "int32"})

    assert [[5, 0], [0, 1]] == operands["experts"].tolist()
    assert np.isnan(operands["weights"][0]).all()
    np.testing.assert_allclose(operands["weights"][1], 1 / 8)


@pytest.mark.parametrize(("num_experts", "num_tokens"), [(8, 1), (8, 200), (60, 37), (256, 21)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_go_to_their_experts_stably_and_come_back_weighted(
    num_experts: int, num_tokens: int, dtype: DType
) -> None:
    rng = np.random.default_rng(2)
    chosen, width = 2, 33
    experts = rng.integers(0, num_experts, num_tokens * chosen).astype(np.int32)
    places = np.empty(len(experts), np.int32)
    places[np.argsort(experts, kind="stable")] = np.arange(len(experts))
    num_blocks = moe.block_count(len(experts), num_experts)
    x = normal(rng, (num_tokens, width), dtype)
    weights = rng.random((num_tokens, chosen), np.float32)
    found = {
        "experts": experts,
        "places": np.full_like(places, -1),
        "ends": np.full(num_experts, -1, np.int32),
        **{name: np.full((num_blocks, num_experts), -1, np.int32) for name in ("counts", "offsets")},
    }
    moved = {"x": x, "places": places, "y": np.zeros((len(experts), width), x.dtype)}
    back = {"x": moved["y"], "places": places, "weights": weights, "y": np.zeros_like(x)}
    kinds: dict[str, DType] = {"x": dtype, "y": dtype, "places": "int32", "weights": "float32"}

    _run(moe.order(num_experts, _SOC), found, dict.fromkeys(found, "int32"))
    _run((moe.permute(width, chosen, dtype, _SOC),), moved, kinds)
    _run((moe.unpermute(width, chosen, dtype, _SOC),), back, kinds)

    np.testing.assert_array_equal(places, found["places"])
    np.testing.assert_array_equal(np.cumsum(np.bincount(experts, minlength=num_experts)), found["ends"])
    np.testing.assert_array_equal(np.repeat(x, chosen, axis=0), moved["y"][places])
    wide = cast(x, dtype, "float32")
    wanted = wide * weights[:, :1] + wide * weights[:, 1:]
    np.testing.assert_allclose(
        cast(back["y"], dtype, "float32"), wanted, rtol=2.0**-7 if dtype == "bfloat16" else 2.0**-10, atol=1e-6
    )


@pytest.mark.parametrize(("vocab_size", "count"), [(1, 1), (40, 7), (4096, 64), (10_001, 50)])
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
    kinds: dict[str, DType] = {
        "logits": "float16", "candidate_values": "float32", "candidate_tokens": "int32", "values": "float32",
        "tokens": "int32",
    }  # fmt: skip

    _run(sample.top(vocab_size, count, "float16", _SOC), operands, kinds)

    np.testing.assert_array_equal(wanted, operands["tokens"])
    np.testing.assert_array_equal(np.take_along_axis(logits, wanted, 1).astype(np.float32), operands["values"])
