"""What a Triton kernel does not take, it refuses with a sentence."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is missing: pip install -r ascend/requirements.txt")

from trivet.base.dtypes import DType
from trivet.operators.contract import Call, TensorSpec
from trivet.operators.triton.families import KERNELS

_KERNELS = {kernel.operator: kernel for kernel in KERNELS}
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


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
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
    for call in (_norm(8192, 8192), _rope(128, 64, 64), _store(64, 64), _attention(2048, 1, 64)):
        assert _KERNELS[call.operator].refuse(call) is None
