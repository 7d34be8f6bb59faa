"""What kernels are compiled for: shapes of models that are served, and the largest that each tile promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ascend.lower.agreement import operand_dtypes
from trivet.base.dtypes import DType
from trivet.operators.contract import Call, TensorSpec, operator_named
from trivet.operators.triton import moe, router, sample
from trivet.operators.triton.families import KERNELS
from trivet.operators.triton.launch import Launch
from trivet.operators.triton.tiles import Soc


@dataclass(frozen=True)
class Case:
    """One launch in one dtype. `group` is the operator, or what stands for one where there is no contract."""

    group: str
    dtype: DType
    launch: Launch
    dtypes: Mapping[str, DType]


DTYPES: tuple[DType, ...] = ("float16", "bfloat16", "float32")

_Calls = Iterator[tuple[Call, Mapping[str, int]]]

# (num_heads, num_kv_heads, head_dim): Qwen 0.5B, Llama 3 8B, 70B, one in eight of a 72B, the widest heads a tile takes
_HEADS = ((14, 2, 64), (32, 8, 128), (64, 8, 128), (8, 1, 128), (16, 8, 256))
_EXPERTS = ((8, 2), (64, 6), (256, 8))  # (experts, chosen): Mixtral, DeepSeek V2 Lite, DeepSeek V3
_VOCABULARIES = (32000, 152064, 262144)


def cases(dtype: DType, soc: Soc) -> Iterator[Case]:
    """Every launch that is compiled in `dtype`. Raises AssertionError when a kernel refuses a shape listed here."""
    for kernel in KERNELS:
        operator = operator_named(kernel.operator)
        for call, sizes in _CALLS[kernel.operator](dtype):
            reason = kernel.refuse(call)
            assert reason is None, f"{kernel.operator} refuses {call}: {reason}"
            yield Case(kernel.operator, dtype, kernel.launch(call, sizes, soc), operand_dtypes(operator, call))
    yield from _expert_cases(dtype, soc)
    for vocab_size in _VOCABULARIES:
        kinds = {"logits": dtype, "candidate_tokens": "int32", "tokens": "int32"}
        kinds |= {"candidate_values": "float32", "values": "float32"}
        for launch in sample.top(vocab_size, 64, dtype, soc):
            yield Case("top", dtype, launch, kinds)


def _expert_cases(dtype: DType, soc: Soc) -> Iterator[Case]:
    rows: dict[str, DType] = {"x": dtype, "y": dtype, "places": "int32", "weights": "float32"}
    yield Case("permute", dtype, moe.permute(7168, 8, dtype, soc), rows)
    yield Case("unpermute", dtype, moe.unpermute(7168, 8, dtype, soc), rows)
    if dtype != "float32":
        return  # the rest has no dtype of its own: logits are float32, places int32
    routed: dict[str, DType] = {"logits": "float32", "weights": "float32", "experts": "int32"}
    ordered: dict[str, DType] = dict.fromkeys(("experts", "counts", "offsets", "places", "ends"), "int32")
    for num_experts, chosen in _EXPERTS:
        for is_renormalised in (False, True):
            launch = router.router_topk(num_experts, chosen, is_renormalised, soc)
            yield Case("router_topk", "float32", launch, routed)
        for launch in moe.order(num_experts, soc):
            yield Case("order", "int32", launch, ordered)


def _rows(dtype: DType, width: int, rows: str = "tokens") -> TensorSpec:
    return TensorSpec((rows, width), dtype)


def _norms(dtype: DType) -> _Calls:
    for size, num_groups in ((4096, 1), (8192, 1), (128, 64)):  # hidden sizes; query heads normalised one by one
        x = _rows(dtype, size * num_groups)
        yield Call("rms_norm", (x, TensorSpec((size,), "float32")), (x,), {"epsilon": 1e-6}), {}


def _add_norms(dtype: DType) -> _Calls:
    for size in (5120, 8192):
        x = _rows(dtype, size)
        yield Call("add_rms_norm", (x, x, TensorSpec((size,), "float32")), (x, x), {"epsilon": 1e-6}), {}


def _pairs(operator: str) -> Callable[[DType], _Calls]:
    def calls(dtype: DType) -> _Calls:
        for width in (896, 29568):
            x = _rows(dtype, width)
            yield Call(operator, (x, x), (x,)), {}

    return calls


def _take_rows(dtype: DType) -> _Calls:
    for width in (896, 8192):
        indices = TensorSpec(("rows",), "int32")
        yield Call("take_rows", (_rows(dtype, width), indices), (_rows(dtype, width, "rows"),)), {}


def _embed(dtype: DType) -> _Calls:
    table = TensorSpec((152064, 8192), dtype)
    yield Call("embed", (TensorSpec(("tokens",), "int32"), table), (_rows(dtype, 8192),)), {}


def _rope(dtype: DType) -> _Calls:
    turns = [(num_heads, head_dim, head_dim) for num_heads, _, head_dim in _HEADS]
    for num_heads, head_dim, rotary in (*turns, (32, 128, 64)):  # the last turns half of each head
        x, angles = _rows(dtype, num_heads * head_dim), _rows("float32", rotary)
        yield Call("rope", (x, angles), (x,), {"head_dim": head_dim}), {}


def _cached(dtype: DType) -> Iterator[tuple[int, int, int, TensorSpec, tuple[TensorSpec, ...], Mapping[str, int]]]:
    starts, slots = TensorSpec(("sequence_starts",), "int32"), TensorSpec(("sequences", "max_slots"), "int32")
    batch = (TensorSpec(("tokens",), "int32"), starts, slots)
    shapes = [(*heads, 128) for heads in _HEADS]  # a slot that holds a whole block
    for num_heads, num_kv_heads, head_dim, slot_tokens in (*shapes, (32, 8, 128, 16)):  # and the smallest there is
        cache = TensorSpec(("num_slots", "slot_tokens", 2, num_kv_heads, head_dim), dtype, "blocks")
        yield num_heads, num_kv_heads, head_dim, cache, batch, {"slot_tokens": slot_tokens}


def _rope_kv_store(dtype: DType) -> _Calls:
    for num_heads, num_kv_heads, head_dim, cache, batch, sizes in _cached(dtype):
        q, row = _rows(dtype, num_heads * head_dim), _rows(dtype, num_kv_heads * head_dim)
        inputs = (q, row, row, _rows("float32", head_dim), cache, *batch)
        yield Call("rope_kv_store", inputs, (q, cache), {"head_dim": head_dim}), sizes


def _attention(dtype: DType) -> _Calls:
    for num_heads, _, head_dim, cache, batch, sizes in _cached(dtype):
        q = _rows(dtype, num_heads * head_dim)
        yield Call("attention", (q, cache, *batch), (q,), {"scale": head_dim**-0.5}), sizes


_CALLS: dict[str, Callable[[DType], _Calls]] = {
    "rms_norm": _norms,
    "add_rms_norm": _add_norms,
    "silu_mul": _pairs("silu_mul"),
    "add": _pairs("add"),
    "take_rows": _take_rows,
    "embed": _embed,
    "rope": _rope,
    "rope_kv_store": _rope_kv_store,
    "attention": _attention,
}
