from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.framework.memory.chain import Chain, Identity
from trivet.framework.memory.reclaim import LeastCost, LeastRecent
from trivet.framework.memory.slots import SlotPool, kv_token_bytes, lay_out


def test_a_token_of_a_kv_stream_is_a_key_and_a_value_per_head():
    assert 2 * 3 * 64 * 2 == kv_token_bytes(3, 64, "bfloat16")
    assert 2 * 3 * (64 + 2) == kv_token_bytes(3, 64, "int8")
    assert 2 * 3 * (80 + 2 * 2) == kv_token_bytes(3, 80, "int8")


def test_a_slot_of_thirty_layers_holds_whole_blocks_within_two_mebibytes():
    layout = lay_out({f"cache.{i}": 768 for i in range(30)})

    assert 80 == layout.slot_tokens  # 91 tokens fit, 5 blocks of 16
    assert 80 * 768 == layout.offsets["cache.1"]
    assert 0 == layout.stride_bytes % 4096


def test_a_slot_is_as_large_as_a_block_where_that_is_more_than_was_asked_for():
    layout = lay_out({"cache": 100_000}, slot_bytes=4096)

    assert 16 == layout.slot_tokens
    assert 1_601_536 == layout.stride_bytes


def test_a_slot_of_a_small_model_is_no_longer_than_a_tenth_of_a_conversation():
    layout = lay_out({f"cache.{i}": 512 for i in range(24)})

    assert 128 == layout.slot_tokens  # 160 would fit
    assert 128 * 24 * 512 == layout.stride_bytes


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=8), st.integers(4096, 1 << 20))
def test_streams_lie_apart_and_one_more_block_would_not_fit_or_be_too_long(sizes, slot_bytes):
    token_bytes = {f"s{i}": size for i, size in enumerate(sizes)}
    layout = lay_out(token_bytes, slot_bytes)
    ends = [layout.offsets[name] + size * layout.slot_tokens for name, size in token_bytes.items()]
    starts = [*layout.offsets.values(), layout.stride_bytes]

    assert layout.slot_tokens % 16 == 0 and layout.stride_bytes % 4096 == 0
    assert all(start % 64 == 0 for start in starts)
    assert all(0 <= start - end for end, start in zip(ends, starts[1:], strict=True))
    assert layout.stride_bytes <= slot_bytes or layout.slot_tokens == 16
    assert layout.slot_tokens == 128 or sum(sizes) * (layout.slot_tokens + 16) > slot_bytes - 64 * len(sizes) - 4096


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


def link(number):
    return Chain(Identity(b"m" * 32, b"l" * 32), "").extend(array("i", [number]), 1, 1)[0]


def filled(pool, *numbers):
    """A holder of one full slot for each number, named by it."""
    held = array("i")
    pool.grow(held, len(numbers) * pool.slot_tokens)
    for slot, number in zip(held, numbers, strict=True):
        pool.name(slot, link(number))
    return held


def test_a_named_slot_is_found_and_shared_while_it_is_held_and_when_it_is_cold():
    pool = SlotPool(4, slot_tokens=1)
    held = filled(pool, 1, 2)
    slots, shared = list(held), array("i")
    pool.share(shared, pool.find([link(1), link(2), link(3)]))
    assert slots == list(shared)
    assert 2 == pool.num_free

    pool.release(held)
    assert 2 == pool.num_free  # the other holds them still
    pool.release(shared)

    assert 4 == pool.num_free
    assert slots == pool.find([link(1), link(2)])
    pool.check()


def test_free_slots_go_before_cold_ones_and_the_end_of_a_sequence_before_its_beginning():
    pool = SlotPool(4, slot_tokens=1)
    first, second = filled(pool, 1, 2), filled(pool, 3)
    taken = []
    pool.on_reclaim = lambda slot, name: taken.append(name)
    pool.release(first)
    pool.release(second)
    pool.grow(array("i"), 1)
    assert [] == taken

    pool.grow(array("i"), 3)

    assert [link(2), link(1), link(3)] == taken


def test_what_is_found_counts_once_when_the_pool_is_asked_for_room():
    pool = SlotPool(3, slot_tokens=1)
    pool.release(filled(pool, 1, 2))
    found = pool.find([link(1), link(2)])

    assert pool.fits(found, 3)
    assert not pool.fits(found, 4)


def test_what_is_forgotten_is_found_no_more_and_its_slot_is_free():
    pool = SlotPool(2, slot_tokens=1)
    held = filled(pool, 1, 2)
    pool.forget(held[:1])
    pool.release(held)
    assert [] == pool.find([link(1)])
    assert 1 == len(pool.find([link(2)]))
    pool.forget(pool.find([link(2)]))

    assert [] == pool.find([link(2)])
    pool.check()


ACTS = ["grow", "name", "share", "release", "forget", "pin"]
POLICIES = [LeastRecent, lambda: LeastCost(lambda depth: 1.0 + depth)]


@given(
    st.integers(1, 9),
    st.sampled_from(POLICIES),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(ACTS), st.integers(0, 5)), max_size=60),
)
def test_random_sharing_never_loses_or_doubles_a_slot_and_a_name_leads_to_what_it_was_given_to(num_slots, policy, acts):
    pool = SlotPool(num_slots, 1, policy())
    holders = [array("i") for _ in range(4)]
    content = {}
    for holder, act, number in acts:
        held = holders[holder]
        if act == "grow" and pool.fits(held, len(held) + 1):
            pool.grow(held, len(held) + 1)
            content.pop(held[-1], None)
        elif act == "name" and held and content.get(held[-1]) is None:
            content[held[-1]] = number
            pool.name(held[-1], link(number))
        elif act == "share":
            pool.share(held, pool.find([link(number)]))
        elif act == "release":
            pool.release(held)
        elif act == "forget":
            for slot in pool.find([link(number)]):
                pool.forget([slot])
        elif act == "pin" and pool.can_pin([link(number)]):
            pool.pin([link(number)])
        pool.check(holders)
        for name in range(6):
            assert all(content[slot] == name for slot in pool.find([link(name)]))


def test_the_pieces_of_a_slot_are_its_streams_and_leave_nothing_out():
    layout = lay_out({"a": 24, "b": 8, "c": 40}, slot_tokens=48)
    pieces = layout.pieces(("a", "b", "c"))

    assert [0, *(piece.stop for piece in pieces[:-1])] == [layout.offsets[name] for name in "abc"]
    assert layout.stride_bytes == pieces[-1].stop
    assert (slice(0, layout.stride_bytes),) == layout.pieces(())
    with pytest.raises(AssertionError, match="streams come in another order than they lie in"):
        layout.pieces(("b", "a", "c"))


def test_what_is_pinned_is_found_however_much_is_needed_and_counts_as_held():
    pool = SlotPool(6, slot_tokens=1)
    pool.pin([link(1), link(9)])
    pool.release(filled(pool, 1, 2, 3))
    assert (1, 2, 5) == (pool.num_pinned, pool.num_to_pin, pool.num_free)
    held = array("i")
    pool.grow(held, 5)

    assert [1, 0, 0] == [len(pool.find([link(number)])) for number in (1, 2, 3)]
    pool.check([held])


def test_a_cold_slot_is_pinned_where_it_is_and_a_forgotten_one_when_it_is_computed_again():
    pool = SlotPool(6, slot_tokens=1)
    pool.release(filled(pool, 1))
    pool.pin([link(1)])
    assert 1 == pool.num_pinned
    pool.forget(pool.find([link(1)]))
    assert (0, 6) == (pool.num_pinned, pool.num_free)
    pool.release(filled(pool, 1))

    assert 1 == pool.num_pinned
    pool.check()


def test_at_most_half_of_a_pool_can_be_pinned():
    pool = SlotPool(5, slot_tokens=1)
    pool.pin([link(1), link(2)])

    assert pool.can_pin([link(1)])
    assert not pool.can_pin([link(3)])
