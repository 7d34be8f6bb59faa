"""What a Triton kernel does not take, it refuses with a sentence."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is missing: pip install -r ascend/requirements.txt")

from trivet.base.dtypes import DType
from trivet.operators.contract import Attribute, Call, TensorSpec
from trivet.operators.triton.families import KERNELS
from trivet.operators.triton.routine import ROUTINES

_KERNELS = {each.operator: each for each in (*KERNELS, *ROUTINES)}
_BATCH = (
    TensorSpec(("tokens",), "int32"),
    TensorSpec(("sequence_starts",), "int32"),
    TensorSpec(("sequences", "max_slots"), "int32"),
)


def _rows(width: int, dtype: DType = "bfloat16") -> TensorSpec:
    return TensorSpec(("tokens", width), dtype)


def _cache(num_kv_heads: int, head_dim: int) -> TensorSpec:
    return TensorSpec(("num_slots", "slot_tokens", 2, num_kv_heads, head_dim), "bfloat16", "blocks")


def _norm(width: int, size: int) -> Call:
    return Call("rms_norm", (_rows(width), TensorSpec((size,), "float32")), (_rows(width),), {"epsilon": 1e-6})


def _rope(width: int, rotary: int, head_dim: int) -> Call:
    return Call("rope", (_rows(width), _rows(rotary, "float32")), (_rows(width),), {"head_dim": head_dim})


def _store(head_dim: int, cached: int) -> Call:
    q, cache = _rows(4 * head_dim), _cache(4, cached)
    inputs = (q, q, q, _rows(head_dim, "float32"), cache, *_BATCH)
    return Call("rope_kv_store", inputs, (q, cache), {"head_dim": head_dim})


def _attention(width: int, num_kv_heads: int, head_dim: int, dtype: DType = "bfloat16") -> Call:
    q = _rows(width, dtype)
    return Call("attention", (q, _cache(num_kv_heads, head_dim), *_BATCH), (q,), {"scale": 1.0})


def _router(num_experts: int, score: str) -> Call:
    outputs = (_rows(2, "float32"), _rows(2, "int32"))
    attributes: dict[str, Attribute] = {"chosen": 2, "score": score, "is_renormalised": 1}
    return Call("router_topk", (_rows(num_experts, "float32"),), outputs, attributes)


def _permute(num_experts: int) -> Call:
    outputs = (TensorSpec(("tokens", 2, 64), "bfloat16"), _rows(2, "int32"), TensorSpec((num_experts,), "int32"))
    return Call("moe_permute", (_rows(64), _rows(2, "int32")), outputs, {"num_experts": num_experts})


def _top_k(vocab: int, count: int) -> Call:
    outputs = (TensorSpec(("rows", count), "float32"), TensorSpec(("rows", count), "int32"))
    return Call("top_k", (TensorSpec(("rows", vocab), "bfloat16"),), outputs, {"count": count})


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (_router(8, "sigmoid"), "score is sigmoid, the kernel makes softmax weights"),
        (_router(2049, "softmax"), "2049 experts do not fit the tile of 2048 elements"),
        (_permute(4097), "4097 experts do not fit the tile of 4096 elements"),
        (_top_k(4096, 65), "count is 65, the tile holds 64"),
        (_top_k(4096 * 65, 64), "64 of 266240 logits leave 4160, the second pass takes 4096"),
        (_norm(100, 64), "width 100 is not a multiple of the weight's 64"),
        (_norm(16384, 16384), "a row of 16384 does not fit the tile of 8192 elements"),
        (_rope(100, 64, 64), "width 100 is not a multiple of head_dim 64"),
        (_rope(128, 96, 64), "96 angles are not an even number of at most head_dim 64"),
        (_rope(128, 33, 64), "33 angles are not an even number of at most head_dim 64"),
        (_store(64, 128), "head_dim is 64, the cache's 128"),
        (_attention(512, 4, 64, "float32"), "q is float32, the cache bfloat16: a product takes one dtype"),
        (_attention(500, 4, 64), "q's width 500 is not a multiple of 4 kv heads of 64"),
        (_attention(4096, 1, 64), "64 query heads share a kv head, the tile holds 32"),
        (_attention(2048, 4, 512), "head_dim 512 exceeds the tile's 256"),
    ],
)
def test_a_call_is_refused_with_the_reason(call: Call, sentence: str) -> None:
    assert sentence == _KERNELS[call.operator].refuse(call)


def test_calls_that_fit_are_not_refused() -> None:
    for call in (
        _router(2048, "softmax"),
        _permute(4096),
        _top_k(262144, 64),
        _norm(8192, 8192),
        _rope(128, 64, 64),
        _store(64, 64),
        _attention(2048, 1, 64),
    ):
        assert _KERNELS[call.operator].refuse(call) is None
