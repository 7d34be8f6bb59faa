"""What the device's operators do not take is refused in a sentence; what lies just inside passes their Meta kernels."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from ascend.schemas.fake import Case, made, wanted
from trivet.base.dtypes import DType
from trivet.base.errors import GraphError, ResourceError
from trivet.operators import npu
from trivet.operators.contract import IMPLEMENTATIONS, Attribute, Call, Implementation, TensorSpec
from trivet.operators.npu.linear import prepare_weight
from trivet.operators.npu.pointwise import halves_of_one
from trivet.operators.npu.prefetch import prefetch, prefetch_bytes
from trivet.operators.npu.ragged import equal_runs
from trivet.operators.samples import ragged
from trivet.operators.torch.lengths import StepLengths, cache_rows

BF16: DType = "bfloat16"
SIZES = {"tokens": 6, "sequences": 3, "sequence_starts": 4, "max_slots": 2, "num_slots": 8, "slot_tokens": 128}
LENGTHS = StepLengths((1, 2, 6), (130, 7, 4))


def named(operator: str, variant: str) -> Implementation:
    return next(one for one in IMPLEMENTATIONS[operator, "npu"] if one.variant == variant)


def rows(width: int, dtype: DType = BF16) -> TensorSpec:
    return TensorSpec(("tokens", width), dtype)


def weight(size: int, dtype: DType = "float32") -> TensorSpec:
    return TensorSpec((size,), dtype)


def blocks(kv_heads: int, head_dim: int, dtype: DType = BF16) -> TensorSpec:
    return TensorSpec(("num_slots", "slot_tokens", 2, kv_heads, head_dim), dtype, "blocks")


BATCH = (
    TensorSpec(("tokens",), "int32"),
    TensorSpec(("sequence_starts",), "int32"),
    TensorSpec(("sequences", "max_slots"), "int32"),
)


def call(
    operator: str, inputs: tuple[TensorSpec | None, ...], outputs: tuple[TensorSpec, ...], **attributes: Attribute
) -> Call:
    return Call(operator, inputs, outputs, attributes)


def rms_norm(x: TensorSpec, size: TensorSpec, y: TensorSpec | None = None) -> Call:
    return call("rms_norm", (x, size), (y or x,), epsilon=1e-6)


def rope(heads: int, head_dim: int, rotary: int, x: DType = BF16) -> Call:
    turned = rows(heads * head_dim, x)
    return call("rope", (turned, rows(rotary, "float32")), (turned,), head_dim=head_dim)


def rope_kv_store(q: TensorSpec, k: TensorSpec, rotary: int, head_dim: int, cache: DType = BF16) -> Call:
    stored = blocks(2, head_dim, cache)
    return call("rope_kv_store", (q, k, k, rows(rotary, "float32"), stored, *BATCH), (q, stored), head_dim=head_dim)


def attention(num_heads: int, kv_heads: int, head_dim: int, q: DType = BF16, cache: DType = BF16) -> Call:
    queries = rows(num_heads * head_dim, q)
    return call("attention", (queries, blocks(kv_heads, head_dim, cache), *BATCH), (queries,), scale=head_dim**-0.5)


def router(num_experts: int, score: str, is_renormalised: int) -> Call:
    outputs = (rows(2, "float32"), rows(2, "int32"))
    attributes = {"chosen": 2, "score": score, "is_renormalised": is_renormalised}
    return call("router_topk", (rows(num_experts, "float32"),), outputs, **attributes)


def permute(num_experts: int, y: DType = BF16) -> Call:
    pairs, ends = rows(2, "int32"), TensorSpec((num_experts,), "int32")
    outputs = (TensorSpec(("tokens", 2, 64), y), pairs, ends)
    return call("moe_permute", (rows(64), pairs), outputs, num_experts=num_experts)


def grouped(num_experts: int, out: int, x: DType = BF16) -> Call:
    ends, weights = TensorSpec((num_experts,), "int32"), TensorSpec((num_experts, out, 64), BF16)
    made_rows = TensorSpec(("tokens", 2, out), x)
    return call("grouped_linear", (TensorSpec(("tokens", 2, 64), x), weights, ends), (made_rows,))


def unpermute(chosen: int, y: DType = BF16) -> Call:
    pairs, shares = rows(chosen, "int32"), rows(chosen, "float32")
    return call("moe_unpermute", (TensorSpec(("tokens", chosen, 64), BF16), pairs, shares), (rows(64, y),))


def norm_cast(y: DType) -> Call:
    wide = rows(64, "float32")
    return call("add_rms_norm_cast", (rows(64), rows(64), weight(64)), (rows(64), rows(64, y), wide), epsilon=1e-6)


REFUSED: Mapping[str, tuple[str, Call]] = {
    "sigmoid scores are not renormalised, npu_moe_gating_top_k always divides them by their sum": (
        "npu_moe_gating_top_k", router(8, "sigmoid", 0)
    ),
    "2 experts, npu_moe_gating_top_k takes 3 to 2048": ("npu_moe_gating_top_k", router(2, "softmax", 1)),
    "2049 experts, npu_moe_gating_top_k takes 3 to 2048": ("npu_moe_gating_top_k", router(2049, "softmax", 1)),
    "10241 experts, npu_moe_init_routing_v2 takes up to 10240": ("npu_moe_init_routing_v2", permute(10241)),
    "x is bfloat16, y is float16: the operator takes one format": ("npu_moe_init_routing_v2", permute(8, "float16")),
    "1025 experts, npu_grouped_matmul takes up to 1024 groups": ("npu_grouped_matmul", grouped(1025, 32)),
    "weights are 65536 by 64, npu_grouped_matmul takes axes below 65536": ("npu_grouped_matmul", grouped(8, 65536)),
    "x is float32, weight is bfloat16, y is float32: the operator takes one format": (
        "npu_grouped_matmul", grouped(8, 32, "float32")
    ),
    "513 experts are chosen, npu_moe_token_unpermute takes up to 512": ("npu_moe_token_unpermute", unpermute(513)),
    "y is float64, the operator takes float16, bfloat16, float32": ("npu_moe_token_unpermute", unpermute(2, "float64")),
    "a is bfloat16, b is bfloat16, sum is bfloat16, y is float16: the operator takes one format": (
        "npu_rms_norm", norm_cast("float16")
    ),
    "x is 96 wide, not a multiple of the weight's 64": ("npu_rms_norm", rms_norm(rows(96), weight(64))),
    "weight is bfloat16, npu_rms_norm takes float32 or the format of x, float32": (
        "npu_rms_norm", rms_norm(rows(64, "float32"), weight(64, BF16))
    ),
    "x is bfloat16, y is float32: the operator takes one format": (
        "npu_rms_norm", rms_norm(rows(64), weight(64), rows(64, "float32"))
    ),
    "x is float64, the operator takes float16, bfloat16, float32": (
        "npu_rms_norm", rms_norm(rows(64, "float64"), weight(64))
    ),
    "a tensor lies in panels, wanted rows or blocks (pass lay_out for this device)": (
        "npu_rms_norm", rms_norm(replace(rows(64), layout="panels"), weight(64))
    ),
    "a is bfloat16, b is float32, sum is bfloat16, y is bfloat16: the operator takes one format": (
        "npu_add_rms_norm",
        call("add_rms_norm", (rows(64), rows(64, "float32"), weight(64)), (rows(64), rows(64)), epsilon=1e-6),
    ),
    "head_dim 17, npu_rotary_mul takes even sizes below 896": ("npu_rotary_mul", rope(2, 17, 17)),
    "head_dim 896, npu_rotary_mul takes even sizes below 896": ("npu_rotary_mul", rope(2, 896, 896)),
    "32 of 64 dims turn, npu_rotary_mul turns whole heads": ("npu_rotary_mul", rope(2, 64, 32)),
    "1000 heads, npu_rotary_mul takes fewer than 1000": ("npu_rotary_mul", rope(1000, 64, 64)),
    "x is 96 wide, not a multiple of head_dim 64": (
        "npu_rotary_mul", call("rope", (rows(96), rows(64, "float32")), (rows(96),), head_dim=64)
    ),
    "16 angles, npu_mrope takes multiples of 32 in bfloat16": (
        "npu_mrope", rope_kv_store(rows(256), rows(128), 16, 64)
    ),
    "24 angles, npu_mrope takes multiples of 16 in float32": (
        "npu_mrope", rope_kv_store(rows(256, "float32"), rows(128, "float32"), 24, 64)
    ),
    "96 angles exceed head_dim 64": ("npu_mrope", rope_kv_store(rows(256), rows(128), 96, 64)),
    "k is 96 wide, not a multiple of head_dim 64": ("npu_mrope", rope_kv_store(rows(256), rows(96), 64, 64)),
    "q is bfloat16, k is float32, v is float32, q' is bfloat16: the operator takes one format": (
        "npu_mrope", rope_kv_store(rows(256), rows(128, "float32"), 64, 64)
    ),
    "cache is uint8, the operator takes float16, bfloat16, float32": (
        "npu_mrope", rope_kv_store(rows(256), rows(128), 64, 64, "uint8")
    ),
    "k is bfloat16, v is float32: the operator takes one format": (
        "npu_scatter_pa_kv_cache",
        call("kv_store", (rows(128), rows(128, "float32"), blocks(2, 64), *BATCH), (blocks(2, 64),)),
    ),
    "head_dim 64, the layout TND takes 128 or 192": ("ragged", attention(4, 2, 64)),
    "head_dim 40, the layout BSND takes multiples of 16 up to 512": ("batched", attention(4, 2, 40)),
    "head_dim 528, the layout BSND takes multiples of 16 up to 512": ("batched", attention(4, 2, 528)),
    "q is 65536 wide, the layout BSND takes less than 65535": ("batched", attention(128, 2, 512)),
    "3 heads over 2, the operator takes whole groups of up to 64": ("ragged", attention(3, 2, 128)),
    "65 heads over 1, the operator takes whole groups of up to 64": ("ragged", attention(65, 1, 128)),
    "257 heads, the operator takes up to 256": ("ragged", attention(257, 257, 128)),
    "q is float32, the operator takes float16, bfloat16": ("ragged", attention(4, 2, 128, "float32")),
    "q is bfloat16, cache is float16, y is bfloat16: the operator takes one format": (
        "ragged", attention(4, 2, 128, cache="float16")
    ),
    "x is float32, weight is bfloat16: the operator takes one format": (
        "one format", call("linear", (rows(64, "float32"), TensorSpec((32, 64), BF16), None), (rows(32, "float32"),))
    ),
    "gate is bfloat16, up is float32, y is bfloat16: the operator takes one format": (
        "npu_swiglu", call("silu_mul", (rows(64), rows(64, "float32")), (rows(64),))
    ),
    "a is bfloat16, b is bfloat16, y is float32: the operator takes one format": (
        "one addition", call("add", (rows(64), rows(64)), (rows(64, "float32"),))
    ),
}  # fmt: skip

# The nearest that is taken, for each limit above.
TAKEN: Mapping[str, tuple[str, Call]] = {
    "3 experts": ("npu_moe_gating_top_k", router(3, "softmax", 0)),
    "2048 experts by their sigmoid": ("npu_moe_gating_top_k", router(2048, "sigmoid", 1)),
    "10240 experts": ("npu_moe_init_routing_v2", permute(10240)),
    "1024 groups": ("npu_grouped_matmul", grouped(1024, 32)),
    "weights of 65535": ("npu_grouped_matmul", grouped(8, 65535)),
    "512 choices": ("npu_moe_token_unpermute", unpermute(512)),
    "norm of groups": ("npu_rms_norm", rms_norm(rows(192), weight(64))),
    "norm with a half precision weight": ("npu_rms_norm", rms_norm(rows(64), weight(64, BF16))),
    "norm in float32": ("npu_rms_norm", rms_norm(rows(64, "float32"), weight(64))),
    "added norm with a float32 weight": (
        "npu_add_rms_norm",
        call("add_rms_norm", (rows(64), rows(64), weight(64)), (rows(64), rows(64)), epsilon=1e-6),
    ),
    "heads of 894": ("npu_rotary_mul", rope(2, 894, 894)),
    "999 heads": ("npu_rotary_mul", rope(999, 64, 64)),
    "half a head turns": ("npu_mrope", rope_kv_store(rows(256), rows(128), 32, 64)),
    "a quarter turns in float32": ("npu_mrope", rope_kv_store(rows(256, "float32"), rows(128, "float32"), 16, 64)),
    "float32 keys into a half precision cache": (
        "npu_mrope", rope_kv_store(rows(256, "float32"), rows(128, "float32"), 64, 64)
    ),
    "a pair by one": ("npu_rotary_mul", rope_kv_store(rows(68), rows(68), 34, 34)),
    "heads of 192": ("ragged", attention(8, 2, 192)),
    "64 heads over one": ("ragged", attention(64, 1, 128)),
    "256 heads": ("ragged", attention(256, 8, 128)),
    "heads of 512": ("batched", attention(4, 2, 512)),
    "heads of 16": ("batched", attention(4, 2, 16)),
    "a bias": (
        "one format",
        call("linear", (rows(64), TensorSpec((32, 64), BF16), weight(32)), (rows(32, "float32"),)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_call_outside_the_limits_is_refused_with_its_sentence(sentence: str) -> None:
    variant, refused = REFUSED[sentence]

    assert sentence == named(refused.operator, variant).refuse(refused)


@pytest.mark.parametrize("what", TAKEN)
def test_the_call_just_inside_the_limits_is_taken(what: str) -> None:
    variant, taken = TAKEN[what]
    implementation, case = named(taken.operator, variant), Case(taken, SIZES, LENGTHS)

    assert implementation.refuse(taken) is None
    assert wanted(case) == made(implementation, case)


@pytest.mark.parametrize("operator", ["take_rows", "rms_norm", "linear"])
def test_a_step_that_wants_no_logits_runs_the_end_of_the_model_on_no_rows(operator: str) -> None:
    x, wanted_rows = TensorSpec(("rows", 64), BF16), TensorSpec(("rows",), "int32")
    empty = {
        "take_rows": call("take_rows", (rows(64), wanted_rows), (x,)),
        "rms_norm": rms_norm(x, weight(32)),
        "linear": call("linear", (x, TensorSpec((96, 64), BF16), None), (TensorSpec(("rows", 96), "float32"),)),
    }
    case = Case(empty[operator], SIZES | {"rows": 0}, LENGTHS)

    assert wanted(case) == made(IMPLEMENTATIONS[operator, "npu"][0], case)


OUTSIDE: Mapping[str, tuple[str, dict[str, int]]] = {
    "slots of 24 tokens, wanted a multiple of 16 up to 1024": ("ragged", {"slot_tokens": 24}),
    "slots of 1040 tokens, wanted a multiple of 16 up to 1024": ("ragged", {"slot_tokens": 1040}),
    "slots of 64 tokens, wanted a multiple of 128 up to 512": ("batched", {"slot_tokens": 64}),
    "slots of 640 tokens, wanted a multiple of 128 up to 512": ("batched", {"slot_tokens": 640}),
    "4097 sequences in a step, wanted up to 4096": ("ragged", {"sequences": 4097}),
    "65537 sequences in a step, wanted up to 65536": ("batched", {"sequences": 65537}),
    "262272 positions of one sequence, wanted up to 262144": ("ragged", {"max_slots": 2049}),
    "2147483648 elements of keys, wanted up to 2147483647": ("ragged", {"num_slots": 2**31 // (128 * 2 * 128)}),
}
INSIDE: Mapping[str, tuple[str, dict[str, int]]] = {
    "slots of 16": ("ragged", {"slot_tokens": 16, "max_slots": 9}),
    "slots of 1024": ("ragged", {"slot_tokens": 1024}),
    "slots of 512": ("batched", {"slot_tokens": 512}),
    "all the elements there may be": ("ragged", {"num_slots": 2**31 // (128 * 2 * 128) - 1}),
}


@pytest.mark.parametrize("sentence", OUTSIDE)
def test_a_plan_of_a_size_that_attention_does_not_take_is_an_error(sentence: str) -> None:
    variant, sizes = OUTSIDE[sentence]

    with pytest.raises(GraphError, match=f"attention: {sentence}"):
        named("attention", variant).lower(attention(4, 2, 128), SIZES | sizes)


@pytest.mark.parametrize("what", INSIDE)
def test_a_plan_just_inside_those_sizes_is_taken(what: str) -> None:
    variant, sizes = INSIDE[what]
    case = Case(attention(4, 2, 128), SIZES | sizes, LENGTHS)

    assert wanted(case) == made(named("attention", variant), case)


def test_neighbours_with_equally_many_new_tokens_are_one_run() -> None:
    lengths = StepLengths((1, 2, 3, 8, 13, 14), (9, 9, 9, 9, 9, 9))

    assert [
        (slice(0, 3), slice(0, 3), 1),
        (slice(3, 5), slice(3, 13), 5),
        (slice(5, 6), slice(13, 14), 1),
    ] == list(equal_runs(lengths))


@pytest.mark.parametrize("slot_tokens", [16, 48, 128])
def test_new_tokens_are_stored_in_the_slot_of_their_position(slot_tokens: int) -> None:
    batch = ragged(np.random.default_rng(slot_tokens), slot_tokens, [(100, 1), (7, 1), (0, 150), (15, 2), (47, 2)])
    rows = cache_rows(batch.starts, batch.positions, batch.slots, slot_tokens)
    for sequence, (start, end) in enumerate(pairwise(batch.starts)):
        for position, row in zip(batch.positions[start:end], rows[start:end], strict=True):
            assert (batch.slots[sequence, position // slot_tokens], position % slot_tokens) == divmod(row, slot_tokens)


def test_halves_of_one_product_are_seen_as_it_without_a_copy() -> None:
    whole = torch.arange(24.0).view(3, 8)
    gate, up = whole.split(4, dim=1)
    merged = halves_of_one(gate, up)

    assert merged is not None
    assert torch.equal(whole, merged)
    assert whole.data_ptr() == merged.data_ptr()


@pytest.mark.parametrize(
    ("gate", "up"),
    [
        (torch.zeros(3, 4), torch.zeros(3, 4)),
        torch.zeros(3, 8).split(4, dim=1)[::-1],
        torch.zeros(3, 12).split(4, dim=1)[:2],
        (torch.zeros(3, 8)[:, :4], torch.zeros(3, 8)[:, 4:]),
        (torch.zeros(1, 8)[:, :4], torch.zeros(1, 4)),
    ],
    ids=["two tensors", "up before gate", "parts of three", "halves of two", "one row"],
)
def test_what_only_looks_like_halves_is_not_merged(gate: torch.Tensor, up: torch.Tensor) -> None:
    assert halves_of_one(gate, up) is None


def test_a_weight_is_rounded_at_load_to_what_its_operator_takes() -> None:
    fused = call("add_rms_norm", (rows(64), rows(64), weight(64)), (rows(64), rows(64)), epsilon=1e-6)
    product = call("linear", (rows(64), TensorSpec((32, 64), BF16), weight(32)), (rows(32),))

    assert torch.bfloat16 == prepare_weight(fused, "weight", torch.ones(64)).dtype
    assert torch.bfloat16 == prepare_weight(product, "bias", torch.ones(32)).dtype
    assert torch.float32 == prepare_weight(rms_norm(rows(64), weight(64)), "weight", torch.ones(64)).dtype


HALF = call("linear", (rows(64), TensorSpec((32, 64), BF16), None), (rows(32),))


def test_only_matrices_in_half_precision_go_to_the_fractal_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        npu.linear.torch_npu, "npu_format_cast", lambda **arguments: asked.append(arguments) or arguments["input"]
    )
    monkeypatch.setattr(npu.linear.torch_npu, "get_npu_format", lambda tensor: 29)
    full = call("linear", (rows(64, "float32"), TensorSpec((32, 64), "float32"), None), (rows(32, "float32"),))
    matrix = torch.arange(3 * 32 * 64.0).view(3, 32, 64)[1]  # one of several in a memory, as a plan brings them
    for product, argument in ((HALF, "x"), (full, "weight")):
        assert prepare_weight(product, argument, matrix) is matrix
    assert [] == asked

    cast = prepare_weight(HALF, "weight", matrix)
    assert torch.equal(matrix, cast)
    assert cast.nbytes == cast.untyped_storage().nbytes()  # a view would stay in rows
    assert [29] == [arguments["acl_format"] for arguments in asked]


def test_a_cast_that_quietly_leaves_the_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu.linear.torch_npu, "npu_format_cast", lambda **arguments: arguments["input"])
    monkeypatch.setattr(npu.linear.torch_npu, "get_npu_format", lambda tensor: 2)

    with pytest.raises(ResourceError, match=r"a weight \[32, 64\] is in format 2 after the cast, wanted 29"):
        prepare_weight(HALF, "weight", torch.ones(32, 64))


def test_a_weight_is_asked_for_up_to_the_bytes_that_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        npu.prefetch.torch_npu, "npu_prefetch", lambda input, dependency, max_size, offset: asked.append(max_size)
    )
    for size in (100, 150):
        prefetch(torch.zeros(size, dtype=torch.uint8), torch.zeros(1), max_bytes=120)

    assert [100, 120] == asked


def test_half_of_l2_may_be_asked_for_and_nothing_of_a_chip_that_is_not_known() -> None:
    assert (96 << 20, 48 << 20, 0) == tuple(map(prefetch_bytes, ("Ascend910B3", "Ascend910B4", "Ascend310P3")))
