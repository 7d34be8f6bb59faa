"""The KV cache's operators: keys and values go into slots, attention reads them back.

Both see a ragged batch: `starts` says which tokens belong to which sequence, `slots` where a sequence's positions are.
The logical shape of a cache is [slots, slot_tokens, 2, num_kv_heads, head_dim], whatever its layout. In int8 a scale is
of one head of one token, or of 64 of its elements where it has more: what a token leaves there depends on no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from trivet.base.dtypes import Array, DType, rounded, row_bytes
from trivet.base.errors import GraphError
from trivet.operators.contract import (
    FLOATS,
    Argument,
    Attribute,
    Axis,
    Call,
    Operator,
    Sample,
    TensorSpec,
    Tolerance,
    operator_named,
    register,
    resolve,
)
from trivet.operators.cpu import implement_kernel
from trivet.operators.rope import rotate
from trivet.operators.samples import Ragged, normal, ragged, spec

_BATCH = (
    Argument("positions", ("tokens",), ("int32",)),
    Argument("starts", ("sequence_starts",), ("int32",)),
    Argument("slots", ("sequences", "max_slots"), ("int32",)),
)
TILE_TOKENS, SPAN_TOKENS = 64, 512  # kTileTokens and kSpanTokens of native/src
_FORMATS: tuple[DType, ...] = (*FLOATS, "int8")  # the formats that keys and values are kept in
_AXES = ("num_slots", "slot_tokens", "kv", "kv_heads", "head_dim")
CACHE = Argument("cache", _AXES, _FORMATS, layouts=("rows", "kv", "blocks"))
STORED = Argument("cache'", CACHE.axes, _FORMATS, layouts=CACHE.layouts)


def _kv_store(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    k, v, cache, positions, starts, slots = inputs
    assert k is not None and v is not None and cache is not None
    assert positions is not None and starts is not None and slots is not None
    new = cache.copy()
    slot_tokens, _, heads, head_dim = cache.shape[1:]
    sequence = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    where = slots[sequence, positions // slot_tokens], positions % slot_tokens
    new[where] = np.stack([k.reshape(-1, heads, head_dim), v.reshape(-1, heads, head_dim)], axis=1)
    return [new]


def _rope_kv_store(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    q, k, v, angles, cache, positions, starts, slots = inputs
    assert q is not None and k is not None and angles is not None
    head_dim = call.integer("head_dim")
    keys = rotate(k, angles, head_dim)
    return [rotate(q, angles, head_dim), *_kv_store(call, [keys, v, cache, positions, starts, slots])]


def _attention(call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    q, cache, positions, starts, slots = inputs
    assert q is not None and cache is not None and positions is not None and starts is not None and slots is not None
    slot_tokens, kv_heads, head_dim = cache.shape[1], cache.shape[3], cache.shape[4]
    is_half = _cache(call).dtype == "bfloat16"
    scaled = rounded(q * call.number("scale"), "bfloat16") if is_half else q * call.number("scale")
    out = np.zeros_like(q)
    for i in range(len(starts) - 1):
        for token in range(starts[i], starts[i + 1]):
            past = np.arange(positions[token] + 1)
            context = cache[slots[i, past // slot_tokens], past % slot_tokens]  # [context, 2, kv_heads, head_dim]
            scores = np.einsum("hgd,chd->hgc", scaled[token].reshape(kv_heads, -1, head_dim), context[:, 0])
            most = scores.max(axis=-1, keepdims=True)
            weights = np.exp(scores - most)
            shares = _rounded_weights(scores, most) if is_half else weights
            shares = shares / weights.sum(axis=-1, keepdims=True)
            out[token] = np.einsum("hgc,chd->hgd", shares, context[:, 1]).reshape(-1)
    return [out]


def _rounded_weights(scores: Array, most: Array) -> Array:
    """exp(scores - most) of positions from 0 on, as values in bfloat16 meet them: rounded relative to the largest score
    of a span up to the end of a position's tile."""
    shares = np.empty_like(scores)
    for begin in range(0, scores.shape[-1], TILE_TOKENS):
        span, tile = slice(begin - begin % SPAN_TOKENS, begin + TILE_TOKENS), slice(begin, begin + TILE_TOKENS)
        running = scores[..., span].max(axis=-1, keepdims=True)
        shares[..., tile] = rounded(np.exp(scores[..., tile] - running), "bfloat16") * np.exp(running - most)
    return shares


# (num_heads, num_kv_heads, head_dim, slot_tokens, [(positions in the cache, new tokens)])
_CASES: tuple[tuple[int, int, int, int, list[tuple[int, int]]], ...] = (
    (1, 1, 2, 16, [(0, 1)]),
    (4, 2, 16, 16, [(0, 5), (17, 1), (15, 2)]),
    (3, 1, 64, 32, [(40, 1), (0, 33), (31, 1)]),
    (9, 3, 34, 16, [(0, 50)]),
    (14, 2, 64, 48, [(100, 1), (7, 19), (0, 1), (130, 3)]),
    (8, 2, 128, 128, [(127, 2), (130, 1), (0, 17)]),
    (3, 1, 16, 32, [(520, 1), (250, 11), (0, 1)]),
    (4, 2, 80, 32, [(77, 1), (0, 40)]),  # two scales for a head, the second of fewer elements
)


def _batches(rng: np.random.Generator) -> Iterator[tuple[int, int, int, int, DType, Ragged, dict[str, int]]]:
    for num_heads, num_kv_heads, head_dim, slot_tokens, lengths in _CASES:
        for dtype in _FORMATS:
            batch = ragged(rng, slot_tokens, lengths)
            sizes = {
                "tokens": len(batch.positions),
                "sequences": len(lengths),
                "sequence_starts": len(lengths) + 1,
                "max_slots": batch.slots.shape[1],
                "num_slots": batch.num_slots,
                "slot_tokens": slot_tokens,
                "context": batch.context,
                "attended": batch.attended,
            }
            yield num_heads, num_kv_heads, head_dim, slot_tokens, dtype, batch, sizes


def _cache_spec(kv_heads: int, head_dim: int, dtype: DType) -> TensorSpec:
    return spec(("num_slots", "slot_tokens", 2, kv_heads, head_dim), dtype, "kv")


def _batch_specs() -> tuple[TensorSpec, ...]:
    return (
        spec(("tokens",), "int32"),
        spec(("sequence_starts",), "int32"),
        spec(("sequences", "max_slots"), "int32"),
    )


def _rows(heads: int, head_dim: int) -> TensorSpec:
    return spec(("tokens", heads * head_dim), "float32")


def _store_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for _, heads, head_dim, slot_tokens, dtype, batch, sizes in _batches(rng):
        cache, rows = _cache_spec(heads, head_dim, dtype), _rows(heads, head_dim)
        call = Call("kv_store", (rows, rows, cache, *_batch_specs()), (cache,))
        k, v = (normal(rng, (sizes["tokens"], heads * head_dim), "float32") for _ in range(2))
        stored = normal(rng, (batch.num_slots, slot_tokens, 2, heads, head_dim), dtype)
        yield Sample(call, (k, v, stored, batch.positions, batch.starts, batch.slots), sizes)


def _rope_store_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_heads, heads, head_dim, slot_tokens, dtype, batch, sizes in _batches(rng):
        cache, rows, queries = _cache_spec(heads, head_dim, dtype), _rows(heads, head_dim), _rows(num_heads, head_dim)
        angles = spec(("tokens", head_dim), "float32")
        inputs = (queries, rows, rows, angles, cache, *_batch_specs())
        call = Call("rope_kv_store", inputs, (queries, cache), {"head_dim": head_dim})
        num_tokens = sizes["tokens"]
        q = normal(rng, (num_tokens, num_heads * head_dim), "float32")
        k, v = (normal(rng, (num_tokens, heads * head_dim), "float32") for _ in range(2))
        turn = normal(rng, (num_tokens, head_dim), "float32")
        stored = normal(rng, (batch.num_slots, slot_tokens, 2, heads, head_dim), dtype)
        yield Sample(call, (q, k, v, turn, stored, batch.positions, batch.starts, batch.slots), sizes)


def _attention_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_heads, heads, head_dim, slot_tokens, dtype, batch, sizes in _batches(rng):
        cache, queries = _cache_spec(heads, head_dim, dtype), _rows(num_heads, head_dim)
        call = Call("attention", (queries, cache, *_batch_specs()), (queries,), {"scale": head_dim**-0.5})
        q = normal(rng, (sizes["tokens"], num_heads * head_dim), "float32", 2.0)
        stored = normal(rng, (batch.num_slots, slot_tokens, 2, heads, head_dim), dtype)
        yield Sample(call, (q, stored, batch.positions, batch.starts, batch.slots), sizes)


def _check_widths(sizes: Mapping[str, Axis], attributes: Mapping[str, Attribute]) -> Mapping[str, Axis]:
    """Rows are whole heads, those of keys and values all that the cache has of a token: kernels take it for granted."""
    heads, head_dim = sizes["kv_heads"], sizes["head_dim"]
    assert isinstance(heads, int) and isinstance(head_dim, int)
    stored, queries = sizes.get("kv_width", heads * head_dim), sizes.get("q_width", heads * head_dim)
    if stored != heads * head_dim:
        raise GraphError(f"keys and values are {stored} wide, the cache has {heads} heads of {head_dim}")
    if not isinstance(queries, int) or heads * head_dim == 0 or queries % (heads * head_dim):
        raise GraphError(f"queries are {queries} wide, {heads} heads of {head_dim} in the cache do not divide it")
    return {}


def _cache(call: Call) -> TensorSpec:
    arguments = operator_named(call.operator).inputs
    return next(spec for argument, spec in zip(arguments, call.inputs, strict=True) if spec and argument is CACHE)


def _cache_sizes(call: Call) -> tuple[int, int]:
    kv_heads, head_dim = _cache(call).axes[3:]
    assert isinstance(kv_heads, int) and isinstance(head_dim, int)
    return kv_heads, head_dim


def _token_bytes(call: Call) -> int:
    dtype = _cache(call).dtype
    assert dtype is not None
    kv_heads, head_dim = _cache_sizes(call)
    return 2 * kv_heads * row_bytes(head_dim, dtype)


def _store_bytes(call: Call, sizes: Mapping[str, int]) -> int:
    specs = (*call.inputs, *call.outputs)
    rows = sum(spec.bytes(sizes) for spec in specs if spec is not None and spec.axes[0] == "tokens")
    return rows + sizes["tokens"] * _token_bytes(call)


def _attention_bytes(call: Call, sizes: Mapping[str, int]) -> int:
    return 2 * call.outputs[0].bytes(sizes) + sizes["context"] * _token_bytes(call)


def _attention_flops(call: Call, sizes: Mapping[str, int]) -> int:
    return 4 * sizes["attended"] * resolve(call.outputs[0].axes[1], sizes)


def _heads(call: Call, sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """num_heads, num_kv_heads, head_dim of a call whose first input is the queries."""
    kv_heads, head_dim = _cache_sizes(call)
    assert call.inputs[0] is not None
    return resolve(call.inputs[0].axes[1], sizes) // head_dim, kv_heads, head_dim


def _rope_store_integers(call: Call, sizes: Mapping[str, int]) -> tuple[int, ...]:
    assert call.inputs[3] is not None
    return (*_heads(call, sizes), resolve(call.inputs[3].axes[1], sizes), sizes["slot_tokens"])


register(
    Operator(
        name="kv_store",
        summary="the cache with the keys and values of the new tokens at their positions",
        inputs=(Argument("k", ("tokens", "kv_width")), Argument("v", ("tokens", "kv_width")), CACHE, *_BATCH),
        outputs=(STORED,),
        reference=_kv_store,
        samples=_store_samples,
        infer=_check_widths,
        tolerance=Tolerance(0.0, 0.0, "copies, rounded once to the cache's format"),
        flops=lambda call, sizes: 0,
        fewest_bytes=_store_bytes,
        updates={"cache'": "cache"},
    )
)
register(
    Operator(
        name="rope_kv_store",
        summary="queries and keys rotated, keys and values stored: rope, rope and kv_store in one pass",
        inputs=(
            Argument("q", ("tokens", "q_width")),
            Argument("k", ("tokens", "kv_width")),
            Argument("v", ("tokens", "kv_width")),
            Argument("angles", ("tokens", "rotary"), ("float32",)),
            CACHE,
            *_BATCH,
        ),
        outputs=(Argument("q'", ("tokens", "q_width")), STORED),
        attributes=("head_dim",),
        reference=_rope_kv_store,
        samples=_rope_store_samples,
        infer=_check_widths,
        tolerance=Tolerance(
            1e-6,
            8e-3,
            "rotated in float32, then rounded once to the cache's format (bfloat16: 2⁻⁸; int8: one step, where a "
            "number is half way between two, and the scale in bfloat16)",
            steps=1,
        ),
        flops=lambda call, sizes: 3 * call.outputs[0].bytes(sizes) // 4,
        fewest_bytes=_store_bytes,
        updates={"cache'": "cache"},
    )
)
register(
    Operator(
        name="attention",
        summary="softmax(q · keysᵀ · scale) · values over the positions up to the token's own; heads share kv heads."
        " Beside a cache in bfloat16 q · scale is rounded to it, and so are the weights of a tile of 64 positions,"
        " relative to the largest score of its span of 512 so far",
        inputs=(Argument("q", ("tokens", "q_width")), CACHE, *_BATCH),
        outputs=(Argument("y", ("tokens", "q_width")),),
        attributes=("scale",),
        reference=_attention,
        samples=_attention_samples,
        infer=_check_widths,
        tolerance=Tolerance(
            4e-6,
            4e-6,
            "float32 scores, exp to 2e-7, sums over ≤ 521 positions in tiles of 64 and spans of 512; beside a cache in "
            "bfloat16, queries and weights may be rounded to it or not, and beside one in int8 to 16 bits, relative to "
            "the largest of 64",
            beside={"int8": 1e-3, "bfloat16": 2e-2},
        ),
        flops=_attention_flops,
        fewest_bytes=_attention_bytes,
    )
)


def _refuse(call: Call) -> str | None:
    layout = _cache(call).layout
    return None if layout == "kv" else f"the cache lies in {layout}; the kernel keeps it in kv (pass lay_out)"


implement_kernel(
    "kv_store",
    ("k", "v", "cache", "positions", "starts", "slots"),
    integers=lambda call, sizes: (*_cache_sizes(call), sizes["slot_tokens"]),
    refuse=_refuse,
)
implement_kernel(
    "rope_kv_store",
    ("q", "k", "v", "angles", "q'", "cache", "positions", "starts", "slots"),
    integers=_rope_store_integers,
    refuse=_refuse,
)
_MAX_HEAD_DIM = 256  # kMaxHeadDim of native/src/kernels.h


def _refuse_attention(call: Call) -> str | None:
    head_dim = _cache_sizes(call)[1]
    return _refuse(call) or (f"head_dim is {head_dim}, more than {_MAX_HEAD_DIM}" if head_dim > _MAX_HEAD_DIM else None)


implement_kernel(
    "attention",
    ("q", "cache", "y", "positions", "starts", "slots"),
    integers=lambda call, sizes: (*_heads(call, sizes), sizes["slot_tokens"]),
    numbers=lambda call: (call.number("scale"),),
    refuse=_refuse_attention,
)
