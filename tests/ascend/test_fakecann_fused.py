"""The fused operators of a language model on the fake: norms, rotation, gates, paged KV writes and attention.

The truth is written here in plain torch, in float32, from the formulas in the public documentation of each operator.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

if "FAKECANN" not in os.environ:
    pytest.skip("runs over the fake CANN: python -m ascend.fakecann.run pytest …", allow_module_level=True)

import torch
import torch_npu
from torch.nn import functional

from ascend.fakecann import counters
from ascend.fakecann.evidence import compared

Result = torch.Tensor | tuple[torch.Tensor, ...]


def _random(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


CAUSAL_MASK = torch.ones(2048, 2048, dtype=torch.bool).triu(1)  # the compressed mask that sparse modes 2 and 3 want
X, RESIDUAL, GAMMA = _random(5, 12), _random(5, 12, seed=1), _random(12, seed=2)
HEADS = _random(7, 3, 8)  # [tokens, heads, head_dim]
KEYS = _random(7, 1, 8, seed=1)
COS, SIN = _random(7, 1, 8, seed=3), _random(7, 1, 8, seed=4)
ANGLES = _random(20, 4, seed=8)  # [positions, cosines | sines] of the first 4 dims
POSITIONS = torch.tensor([3, 19, 0, 7, 7, 1, 12])
ROUTER = _random(6, 8, seed=5)


def normed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    inverse = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    return x * inverse * GAMMA, inverse


def halves_turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * COS + torch.cat([-second, first], -1) * SIN


def rotate_in_place() -> Result:
    query, key = HEADS.npu(), KEYS.npu()
    torch_npu.npu_apply_rotary_pos_emb(query, key, COS.npu(), SIN.npu(), layout="TND", rotary_mode="half")
    return query, key


def turned_by_a_table() -> Result:
    return tuple(
        torch_npu.npu_mrope(
            positions=POSITIONS.npu(), query=HEADS.flatten(1).npu(), key=KEYS.flatten(1).npu(),
            cos_sin_cache=ANGLES.npu(), head_size=8, mrope_section=[0, 0, 0], rotary_mode="half", cache_mode="default",
        )
    )  # fmt: skip


def turned_in_part(x: torch.Tensor) -> torch.Tensor:
    cos, sin = ANGLES[POSITIONS][:, None].chunk(2, -1)
    first, second, rest = x[..., :2], x[..., 2:4], x[..., 4:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1).flatten(1)


def scattered() -> Result:
    keys, values = torch.zeros(2, 3, 4, 2, 8).npu()
    torch_npu.npu_scatter_pa_kv_cache(
        HEADS[:, :2].npu(), HEADS[:, 1:].npu(), keys, values, SLOTS.int().npu(), cache_mode="Norm"
    )
    return keys, values


SLOTS = torch.tensor([9, 0, 5, 6, 11, 2, 7])


def scattered_plainly() -> Result:
    keys, values = torch.zeros(2, 12, 2, 8)
    keys[SLOTS], values[SLOTS] = HEADS[:, :2], HEADS[:, 1:]
    return keys.view(3, 4, 2, 8), values.view(3, 4, 2, 8)


def softmax_gate() -> Result:
    weights, experts = ROUTER.softmax(-1).topk(3)
    rows = torch.arange(18, dtype=torch.int32).view(3, 6).t()
    return weights, experts.int(), rows


def renormalised_gate() -> Result:
    best, experts = ROUTER.topk(3)
    return best.softmax(-1), experts.int()


def sigmoid_gate() -> Result:
    scores = ROUTER.sigmoid()
    experts = (scores + ROUTER[0]).topk(3).indices
    best = scores.gather(1, experts)
    return best / (best.sum(-1, keepdim=True) + 1e-20) * 2.5, experts.int()


# attention: two sequences, 5 new tokens after 13 and 1 after 20; 4 heads over 2 kv heads of 16 dims; blocks of 16
QUERY_LENGTHS, KV_LENGTHS = [5, 1], [18, 21]
QUERY = _random(6, 4, 16, seed=6)
CACHE = _random(2, 6, 16, 2, 16, seed=7)  # [kv, blocks, block_tokens, kv_heads, head_dim]
TABLE = torch.tensor([[4, 1], [0, 5]])


def attended() -> torch.Tensor:
    outputs = []
    for query, blocks, length in zip(QUERY.split(QUERY_LENGTHS), TABLE, KV_LENGTHS, strict=True):
        key, value = (
            CACHE[i, blocks].flatten(0, 1)[:length].repeat_interleave(2, dim=1).transpose(0, 1) for i in (0, 1)
        )
        scores = query.transpose(0, 1) @ key.transpose(1, 2) * 0.25
        ahead = torch.ones(scores.shape[1:], dtype=torch.bool).triu(length - len(query) + 1)
        outputs.append((scores.masked_fill(ahead, -torch.inf).softmax(-1) @ value).transpose(0, 1))
    return torch.cat(outputs)


def paged(call: Callable[..., Result]) -> Result:
    """The ragged batch over blocks: ends of the queries, lengths of the contexts, as the interface wants them."""
    key, value = CACHE.flatten(3).npu()
    names = ("actual_seq_qlen", "actual_seq_kvlen", "num_query_heads", "softmax_scale")
    if call is torch_npu.npu_fused_infer_attention_score:
        names = ("actual_seq_lengths", "actual_seq_lengths_kv", "num_heads", "scale")
    return call(
        QUERY.npu(), key, value,
        atten_mask=CAUSAL_MASK.npu(), block_table=TABLE.int().npu(), input_layout="TND",
        num_key_value_heads=2, sparse_mode=3, block_size=16,
        **dict(zip(names, ([5, 6], KV_LENGTHS, 4, 0.25), strict=True)),
    )[0]  # fmt: skip


# A matrix of 40 × 24 does not fill its last blocks of 16 × 16.
WEIGHT, ROWS, BIAS = (_random(*sizes, dtype=torch.bfloat16) for sizes in ((40, 24), (5, 24), (40,)))


def fractal_weight() -> torch.Tensor:
    torch.npu.config.allow_internal_format = True  # or the cast keeps plain rows, with a warning
    weight = torch_npu.npu_format_cast(WEIGHT.npu(), 29)
    torch.npu.config.allow_internal_format = False

    assert "FRACTAL_NZ" == torch_npu.get_npu_format(weight).name
    return weight


EXPERTS = torch.tensor([[3, 0], [1, 3], [0, 1], [3, 1], [0, 3]], dtype=torch.int32)
ORDER = EXPERTS.flatten().long().argsort(stable=True)
PLACES = torch.empty(10, dtype=torch.int32).scatter_(0, ORDER, torch.arange(10, dtype=torch.int32))
EXPERT_WEIGHTS = _random(4, 12, 7, seed=6)  # [experts, in, out]


def routed() -> tuple[torch.Tensor, ...]:
    return torch_npu.npu_moe_init_routing_v2(
        X.npu(), EXPERTS.npu(), active_num=10, expert_num=4, expert_tokens_num_type=0, expert_tokens_num_flag=True,
        quant_mode=-1, active_expert_range=[0, 4], row_idx_type=0,
    )[:3]  # fmt: skip


def grouped() -> torch.Tensor:
    (y,) = torch_npu.npu_grouped_matmul(
        [X.npu()], [EXPERT_WEIGHTS.npu()], group_list=torch.tensor([2, 2, 2, 5]).npu(), split_item=2, group_type=0,
        group_list_type=0,
    )  # fmt: skip
    return y


FUSED: dict[str, tuple[Callable[[], Result], Callable[[], Result]]] = {
    "aclnnNpuFormatCast": (fractal_weight, lambda: WEIGHT),
    "aclnnMatmulWeightNz": (
        lambda: functional.linear(ROWS.npu(), fractal_weight()),
        lambda: functional.linear(ROWS, WEIGHT),
    ),
    "aclnnAddmmWeightNz": (
        lambda: functional.linear(ROWS.npu(), fractal_weight(), BIAS.npu()),
        lambda: functional.linear(ROWS, WEIGHT, BIAS),
    ),
    "aclnnRmsNorm": (lambda: tuple(torch_npu.npu_rms_norm(X.npu(), GAMMA.npu(), epsilon=1e-5)), lambda: normed(X)),
    "aclnnAddRmsNorm": (
        lambda: tuple(torch_npu.npu_add_rms_norm(X.npu(), RESIDUAL.npu(), GAMMA.npu(), epsilon=1e-5)),
        lambda: (*normed(X + RESIDUAL), X + RESIDUAL),
    ),
    "aclnnSwiGlu": (lambda: torch_npu.npu_swiglu(X.npu(), dim=-1), lambda: functional.silu(X[:, :6]) * X[:, 6:]),
    "aclnnRotaryPositionEmbeddingV2": (
        lambda: torch_npu.npu_rotary_mul(HEADS.npu()[None], COS.npu()[None], SIN.npu()[None]),
        lambda: halves_turned(HEADS)[None],
    ),
    "aclnnApplyRotaryPosEmbV2": (rotate_in_place, lambda: (halves_turned(HEADS), halves_turned(KEYS))),
    "aclnnRopeWithSinCosCacheV2": (turned_by_a_table, lambda: (turned_in_part(HEADS), turned_in_part(KEYS))),
    "aclnnScatterPaKvCache": (scattered, scattered_plainly),
    "aclnnFusedInferAttentionScoreV3": (lambda: paged(torch_npu.npu_fused_infer_attention_score), attended),
    "aclnnFusedInferAttentionScoreV4": (lambda: paged(torch_npu.npu_fused_infer_attention_score_v2), attended),
    "aclnnMoeGatingTopKSoftmax": (
        lambda: tuple(torch_npu.npu_moe_gating_top_k_softmax(ROUTER.npu(), k=3)),
        softmax_gate,
    ),
    "aclnnMoeGatingTopKSoftmaxV2": (
        lambda: tuple(torch_npu.npu_moe_gating_top_k_softmax_v2(ROUTER.npu(), k=3, renorm=1))[:2],
        renormalised_gate,
    ),
    "aclnnMoeGatingTopK": (
        lambda: tuple(
            torch_npu.npu_moe_gating_top_k(
                ROUTER.npu(), k=3, bias=ROUTER[0].npu(), norm_type=1, routed_scaling_factor=2.5
            )
        )[:2],
        sigmoid_gate,
    ),
    "aclnnMoeInitRoutingV3": (routed, lambda: (X[ORDER // 2], PLACES, torch.tensor([3, 6, 6, 10]))),
    "aclnnGroupedMatmulV5": (grouped, lambda: torch.cat([X[:2] @ EXPERT_WEIGHTS[0], X[2:] @ EXPERT_WEIGHTS[3]])),
    "aclnnMoeTokenUnpermute": (
        lambda: torch_npu.npu_moe_token_unpermute(
            X[ORDER // 2].npu(), PLACES.npu(), probs=ROUTER[:5, :2].contiguous().npu()
        ),
        lambda: X * ROUTER[:5, :2].sum(1, keepdim=True),
    ),
}


@pytest.mark.parametrize("operator", FUSED)
def test_a_fused_operator_agrees_with_plain_torch(operator: str) -> None:
    fused, plain = FUSED[operator]
    counters.reset()
    result = fused()
    moved = tuple(part.cpu() for part in result) if isinstance(result, tuple) else result.cpu()

    assert operator in counters.read().launches
    torch.testing.assert_close(moved, plain())
    compared(operator)
