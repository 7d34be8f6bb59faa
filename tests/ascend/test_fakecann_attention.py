"""The fake's fused attention in every layout and sparse mode that it computes, and what it says of the others."""

from __future__ import annotations

import os

import pytest

if "FAKECANN" not in os.environ:
    pytest.skip("runs over the fake CANN: python -m ascend.fakecann.run pytest …", allow_module_level=True)

import torch
import torch_npu

from tests.ascend.test_fakecann_runtime import in_a_process_of_its_own

BATCH, QUERIES, CONTEXT, HEADS, KV_HEADS, DIM = 2, 5, 21, 4, 2, 16
SCALE = 0.25
COMPRESSED_MASK = torch.ones(2048, 2048, dtype=torch.bool).triu(1)

RANDOM = torch.Generator().manual_seed(0)
QUERY = torch.randn(BATCH, QUERIES, HEADS, DIM, generator=RANDOM)
KEY, VALUE = torch.randn(2, BATCH, CONTEXT, KV_HEADS, DIM, generator=RANDOM)
SOME_MASK = torch.rand(BATCH, 1, QUERIES, CONTEXT, generator=RANDOM) < 0.3

NOTHING_HIDDEN = torch.zeros(QUERIES, CONTEXT, dtype=torch.bool)
AHEAD_FROM_THE_END = torch.ones(QUERIES, CONTEXT, dtype=torch.bool).triu(CONTEXT - QUERIES + 1)
AHEAD_FROM_THE_START = torch.ones(QUERIES, CONTEXT, dtype=torch.bool).triu(1)


def scores_of(hidden: torch.Tensor) -> torch.Tensor:
    """[batch, heads, queries, context], with -inf where hidden."""
    keys = KEY.repeat_interleave(HEADS // KV_HEADS, dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", QUERY, keys) * SCALE
    return scores.masked_fill(hidden, -torch.inf)


def attended(hidden: torch.Tensor) -> torch.Tensor:
    """[batch, queries, heads, dim]"""
    values = VALUE.repeat_interleave(HEADS // KV_HEADS, dim=2)
    return torch.einsum("bhqk,bkhd->bqhd", scores_of(hidden).softmax(-1), values)


def on_npu(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: str, **more: object) -> torch.Tensor:
    moved = {name: given.npu() if isinstance(given, torch.Tensor) else given for name, given in more.items()}
    y, _ = torch_npu.npu_fused_infer_attention_score(
        query.npu(), key.npu(), value.npu(), num_heads=HEADS, num_key_value_heads=KV_HEADS, scale=SCALE,
        input_layout=layout, **moved,
    )  # fmt: skip
    return y.cpu()


@pytest.mark.parametrize(
    ("hidden", "settings"),
    [
        (NOTHING_HIDDEN, {}),
        (SOME_MASK, {"atten_mask": SOME_MASK}),
        (AHEAD_FROM_THE_START, {"atten_mask": COMPRESSED_MASK, "sparse_mode": 2}),
        (AHEAD_FROM_THE_END, {"atten_mask": COMPRESSED_MASK, "sparse_mode": 3}),
    ],
)
def test_a_mask_hides_what_its_sparse_mode_says(hidden: torch.Tensor, settings: dict[str, object]) -> None:
    torch.testing.assert_close(on_npu(QUERY, KEY, VALUE, "BSND", **settings), attended(hidden))


def test_heads_may_lie_before_tokens_or_beside_each_other() -> None:
    wanted = attended(NOTHING_HIDDEN)
    apart = on_npu(QUERY.transpose(1, 2).contiguous(), KEY.transpose(1, 2).contiguous(),
                   VALUE.transpose(1, 2).contiguous(), "BNSD")  # fmt: skip

    torch.testing.assert_close(apart, wanted.transpose(1, 2))
    torch.testing.assert_close(on_npu(QUERY.flatten(2), KEY.flatten(2), VALUE.flatten(2), "BSH"), wanted.flatten(2))


def test_a_ragged_batch_says_where_its_sequences_end() -> None:
    ragged = on_npu(
        QUERY.flatten(0, 1), KEY.flatten(0, 1), VALUE.flatten(0, 1), "TND",
        actual_seq_lengths=[QUERIES, 2 * QUERIES], actual_seq_lengths_kv=[CONTEXT, 2 * CONTEXT],
        atten_mask=COMPRESSED_MASK, sparse_mode=3,
    )  # fmt: skip

    torch.testing.assert_close(ragged, attended(AHEAD_FROM_THE_END).flatten(0, 1))


TABLE = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
BLOCK = 16


def blocks(rows: torch.Tensor) -> torch.Tensor:
    """[4 blocks, BLOCK, kv_heads, dim] with the rows of each sequence where the table says, and nan elsewhere."""
    unused = torch.full((2 * BLOCK - CONTEXT, KV_HEADS, DIM), torch.nan)
    cache = torch.full((4, BLOCK, KV_HEADS, DIM), torch.nan)
    for sequence, row in enumerate(rows):
        cache[TABLE[sequence].long()] = torch.cat([row, unused]).view(2, BLOCK, KV_HEADS, DIM)
    return cache


PAGED = {"block_table": TABLE, "block_size": BLOCK, "actual_seq_lengths_kv": [CONTEXT, CONTEXT]}


def test_blocks_may_hold_tokens_or_heads_first() -> None:
    wanted = attended(NOTHING_HIDDEN)
    tokens_first = on_npu(QUERY, blocks(KEY).flatten(2), blocks(VALUE).flatten(2), "BSND", **PAGED)
    heads_first = on_npu(
        QUERY.transpose(1, 2).contiguous(), blocks(KEY).transpose(1, 2).contiguous(),
        blocks(VALUE).transpose(1, 2).contiguous(), "BNSD", **PAGED,
    )  # fmt: skip

    torch.testing.assert_close(tokens_first, wanted)
    torch.testing.assert_close(heads_first, wanted.transpose(1, 2))


def test_the_log_of_the_softmax_sum_is_given_when_asked() -> None:
    _, sums = torch_npu.npu_fused_infer_attention_score(
        QUERY.npu(), KEY.npu(), VALUE.npu(), num_heads=HEADS, num_key_value_heads=KV_HEADS, scale=SCALE,
        input_layout="BSND", softmax_lse_flag=True,
    )  # fmt: skip

    torch.testing.assert_close(sums.cpu(), scores_of(NOTHING_HIDDEN).logsumexp(-1, keepdim=True))


WRONG = {
    "sparse_mode 4 is not emulated": {"atten_mask": COMPRESSED_MASK, "sparse_mode": 4},
    "wants an attention mask of 2048": {"sparse_mode": 3},
    "hides something else": {"atten_mask": COMPRESSED_MASK.flip(0), "sparse_mode": 3},
    "a block lies outside": PAGED | {"block_table": TABLE + 3},
    "blocks needed": PAGED | {"actual_seq_lengths_kv": [40, 21]},
    "blocks want actual_seq_lengths_kv": PAGED | {"actual_seq_lengths_kv": None},
    "query_padding_size is not emulated": {"query_padding_size": torch.tensor([1])},
}


def say_what_is_wrong() -> None:
    """Runs every wrong call, each on a stream of its own: nothing runs any more on one whose kernel has failed."""
    for settings in WRONG.values():
        key, value = (blocks(x).flatten(2) if "block_table" in settings else x for x in (KEY, VALUE))
        with torch.npu.stream(torch.npu.Stream()), pytest.raises(RuntimeError):
            on_npu(QUERY, key, value, "BSND", **settings)


def test_what_attention_does_not_compute_is_an_error_that_says_so() -> None:
    program = (
        "from tests.ascend.test_fakecann_attention import say_what_is_wrong\nsay_what_is_wrong()\nprint('all raised')"
    )
    ended = in_a_process_of_its_own(program)

    assert "all raised\n" in ended.stdout
    for sentence in WRONG:
        assert sentence in ended.stderr
