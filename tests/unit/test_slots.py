from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.framework.memory.slots import SlotPool, kv_token_bytes, lay_out


def test_a_token_of_a_kv_stream_is_a_key_and_a_value_per_head():
    assert 2 * 3 * 64 * 2 == kv_token_bytes(3, 64, "bfloat16")


def test_a_slot_of_thirty_layers_holds_whole_blocks_within_two_mebibytes():
    layout = lay_out({f"cache.{i}": 768 for i in range(30)})

    assert 80 == layout.slot_tokens  # 91 tokens fit, 5 blocks of 16
    assert 80 * 768 == layout.offsets["cache.1"]
    assert 0 == layout.stride_bytes % 4096


def test_a_slot_is_as_large_as_a_block_where_that_is_more_than_was_asked_for():
    layout = lay_out({"cache": 100_000}, slot_bytes=4096)

    assert 16 == layout.slot_tokens
    assert 1_601_536 == layout.stride_bytes


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=8), st.integers(4096, 1 << 20))
def test_streams_lie_apart_and_one_more_block_would_not_fit(sizes, slot_bytes):
    token_bytes = {f"s{i}": size for i, size in enumerate(sizes)}
    layout = lay_out(token_bytes, slot_bytes)
    ends = [layout.offsets[name] + size * layout.slot_tokens for name, size in token_bytes.items()]
    starts = [*layout.offsets.values(), layout.stride_bytes]

    assert layout.slot_tokens % 16 == 0 and layout.stride_bytes % 4096 == 0
    assert all(start % 64 == 0 for start in starts)
    assert all(0 <= start - end for end, start in zip(ends, starts[1:], strict=True))
    assert layout.stride_bytes <= slot_bytes or layout.slot_tokens == 16
    assert sum(sizes) * (layout.slot_tokens + 16) > slot_bytes - 64 * len(sizes) - 4096


def test_a_holder_extends_into_its_last_slot_before_it_takes_another():
    pool = SlotPool(4, slot_tokens=16)
    held = []
    pool.grow(held, 16)
    assert 0 == pool.missing(held, 16)
    assert 1 == pool.missing(held, 17)

    pool.grow(held, 17)

    assert 2 == len(held)
    assert 0.5 == pool.usage


def test_the_warmest_slot_goes_out_again_first():
    pool = SlotPool(4, slot_tokens=1)
    held = []
    pool.grow(held, 3)
    first = list(held)
    pool.release(held)
    pool.grow(held, 1)

    assert first[:1] == held


def test_growing_without_room_is_a_broken_invariant_and_takes_nothing():
    pool = SlotPool(2, slot_tokens=4)
    held = []
    with pytest.raises(AssertionError, match="3 slots wanted, 2 free"):
        pool.grow(held, 9)

    pool.check([held])


@pytest.mark.parametrize("held, what", [([[0], [0]], "doubled"), ([[]], "lost"), ([[0, 9]], "unknown")])
def test_the_check_finds_slots_doubled_lost_and_unknown(held, what):
    pool = SlotPool(2, slot_tokens=4)
    pool.grow([], 4)
    with pytest.raises(AssertionError, match=what + r" \["):
        pool.check(held)


@given(st.integers(1, 12), st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=60))
def test_random_growing_and_releasing_never_loses_or_doubles_a_slot(num_slots, slot_tokens, acts):
    pool = SlotPool(num_slots, slot_tokens)
    holders = [array("i") for _ in range(5)]
    for holder, num_tokens in acts:
        held = holders[holder]
        if num_tokens and pool.fits(held, num_tokens):
            pool.grow(held, num_tokens)
            assert len(held) * slot_tokens >= num_tokens
        elif not num_tokens:
            pool.release(held)
        pool.check(holders)
