import threading
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.base.errors import ResourceError
from trivet.framework.memory.chain import Chain, Identity, Link
from trivet.framework.memory.file_tier import FileTier
from trivet.framework.memory.host_tier import HostTier
from trivet.framework.memory.tiers import Fetch, Tiers
from trivet.framework.memory.worth import Worth, exposed_s

IDENTITY = Identity(b"m" * 32, b"l" * 32)
SLOT_BYTES = 4096


class Slots:
    """The slots of a pool, each full of its own number; what is restored is written after them."""

    slot_bytes = SLOT_BYTES
    pieces = (slice(0, SLOT_BYTES // 4), slice(SLOT_BYTES // 4, SLOT_BYTES))

    def __init__(self) -> None:
        self.bytes = np.repeat(np.arange(40, dtype=np.uint8)[:, None], SLOT_BYTES, axis=1)

    def read_slot(self, slot, into):
        into[:] = self.bytes[slot]

    def write_slot(self, slot, piece, source):
        self.bytes[slot, piece] = source[piece]


def links(count: int, salt: str = "") -> list[Link]:
    return Chain(IDENTITY, salt).extend(array("i", range(count)), 1, count)


@pytest.fixture
def host_only():
    tiers = Tiers(IDENTITY, Slots(), HostTier(3 * SLOT_BYTES, SLOT_BYTES))
    yield tiers
    tiers.close()


def with_files(folder, num_host: int = 4) -> Tiers:
    files = FileTier(folder, 1 << 20, IDENTITY, Slots.pieces)
    return Tiers(IDENTITY, Slots(), HostTier(num_host * SLOT_BYTES, SLOT_BYTES), files)


def restored(tiers: Tiers, wanted: list[Link]) -> list[int]:
    """What is in the slots 30, 31, … after restoring these from host memory."""
    blocks = tiers.take(wanted)
    for i, block in enumerate(blocks):
        assert tiers.restore(block, 30 + i)
    return [int(tiers._memory.bytes[30 + i][0]) for i in range(len(blocks))]


def fetched(tiers: Tiers, wanted: list[Link]) -> None:
    fetch = tiers.fetch(wanted, block_tokens=1)
    assert fetch is not None
    fetch.done.wait()
    tiers.end(fetch)


def test_a_slot_that_sank_comes_back(host_only):
    for i, link in enumerate(links(3)):
        host_only.sink(i, link)

    assert [0, 1, 2] == restored(host_only, links(3))


def test_what_was_used_last_stays(host_only):
    for i in (0, 1, 2):
        host_only.sink(i, links(4)[i])
    restored(host_only, links(1))
    host_only.sink(3, links(4)[3])

    assert [0] == restored(host_only, links(4))  # 1 is gone, so 2 and 3 cannot be used behind it


def test_a_changed_byte_in_host_memory_is_a_miss_and_forgotten(host_only, caplog):
    host_only.sink(0, links(1)[0])
    host_only.host.find(links(1)[0].name).payload[17] ^= 1
    (block,) = host_only.take(links(1))

    assert not host_only.restore(block, 30)
    assert 30 == host_only._memory.bytes[30][0]
    assert [] == host_only.take(links(1))
    assert 1 == host_only.counts.corrupt_host
    assert "event=kv_block_corrupt tier=host" in caplog.text


def test_a_block_that_is_taken_is_not_evicted_and_what_finds_no_room_is_dropped(host_only):
    for i, link in enumerate(links(3)):
        host_only.sink(i, link)
    taken = host_only.take(links(3))
    host_only.sink(5, links(6)[5])

    assert 1 == host_only.counts.dropped
    assert [0, 1, 2] == [int(block.payload[0]) for block in taken]

    host_only.let_go(taken)


def test_blocks_come_back_from_files_after_a_restart(tmp_path):
    tiers = with_files(tmp_path)
    for i, link in enumerate(links(9)):
        tiers.sink(i, link)
        tiers.settle()
    tiers.close()
    tiers = with_files(tmp_path, num_host=8)
    assert [] == tiers.take(links(9))
    fetched(tiers, links(9))

    assert [0, 1, 2, 3, 4, 5, 6, 7] == restored(tiers, links(9))  # the ninth found no room in host memory
    tiers.close()


def test_a_block_from_files_keeps_its_place_in_host_memory_from_its_second_use_on(tmp_path):
    tiers = with_files(tmp_path)
    for i, link in enumerate(links(4)):
        tiers.sink(i, link)
    tiers.settle()
    tiers.close()
    tiers = with_files(tmp_path, num_host=2)
    fetched(tiers, links(2))
    restored(tiers, links(2))
    restored(tiers, links(1))  # the second use of the first
    fetched(tiers, links(3)[2:])

    assert [True, False, True] == [tiers.host.find(link.name) is not None for link in links(3)]
    tiers.close()


def test_an_ended_fetch_leaves_nothing_pinned(tmp_path):
    tiers = with_files(tmp_path)
    for i, link in enumerate(links(4)):
        tiers.sink(i, link)
    tiers.settle()
    tiers.close()
    tiers = with_files(tmp_path)
    for _ in range(20):
        fetch = tiers.fetch(links(4), block_tokens=1)
        if fetch is not None:
            tiers.end(fetch)

    tiers.close()  # checks that every block is free or found, and none pinned


def arriving(tiers: Tiers, count: int) -> tuple[Fetch, list]:
    """A fetch of the first blocks in files, and what was reserved for all that it has not read."""
    fetch = tiers.fetch(links(count), block_tokens=1)
    assert fetch is not None
    here = tiers.take(links(count))
    tiers.let_go(here)
    return fetch, tiers.reserve(fetch, links(count)[len(here) :])


def stop_reading(tiers: Tiers) -> None:
    tiers._reads.put(None)
    tiers._threads[0].join()


def read_on(tiers: Tiers) -> None:
    """What the thread that reads would do for those that wait in a step."""
    while not tiers._reads.empty():
        tiers._reads.get()
    tiers._bring_arrivals(tiers.files)


def in_files(folder, count: int) -> None:
    tiers = with_files(folder, num_host=count)
    for i, link in enumerate(links(count)):
        tiers.sink(i, link)
    tiers.settle()
    tiers.close()


def test_blocks_arrive_in_slots_and_in_host_memory_and_the_gate_counts_each_piece_of_each(tmp_path):
    in_files(tmp_path, 4)
    tiers = with_files(tmp_path, num_host=8)
    stop_reading(tiers)
    fetch, coming = arriving(tiers, 4)
    tiers.bring(fetch, coming, [30, 31, 32, 33], 0)
    assert 0 == fetch.arrival.gate.num_pieces
    read_on(tiers)

    assert [0, 1, 2, 3] == [int(tiers._memory.bytes[slot][-1]) for slot in (30, 31, 32, 33)]
    assert (2 * 4, False) == (fetch.arrival.gate.num_pieces, fetch.arrival.gate.has_failed)
    assert 4 == tiers.counts.restored_files == tiers.counts.fetched
    assert [0, 1, 2, 3] == restored(tiers, links(4))

    tiers.end(fetch)
    del fetch, coming
    tiers.close()


def test_an_arrival_that_has_ended_writes_to_no_slot_and_leaves_nothing_pinned(tmp_path):
    in_files(tmp_path, 4)
    tiers = with_files(tmp_path, num_host=8)
    stop_reading(tiers)
    fetch, coming = arriving(tiers, 4)
    tiers.bring(fetch, coming, [30, 31, 32, 33], 0)
    tiers.end(fetch)
    read_on(tiers)

    assert [30, 31, 32, 33] == [int(tiers._memory.bytes[slot][0]) for slot in (30, 31, 32, 33)]
    assert fetch.arrival.gate.has_failed

    del fetch, coming
    tiers.close()  # checks the pins


def test_no_more_is_reserved_than_host_memory_has_room_for_nor_beyond_what_is_fetched(tmp_path):
    in_files(tmp_path, 6)
    for num_host, wanted in ((3, 3), (8, 6)):
        tiers = with_files(tmp_path, num_host)
        stop_reading(tiers)
        fetch, coming = arriving(tiers, 6)

        assert wanted == len(coming)
        assert [] == tiers.reserve(fetch, links(9)[6:])

        tiers.let_go(coming)
        tiers.end(fetch)
        del fetch, coming
        tiers.close()


def test_what_is_in_doubt_is_found_nowhere(tmp_path):
    tiers = with_files(tmp_path)
    tiers.sink(0, links(1)[0])
    tiers.settle()
    tiers.forget(links(1))
    tiers.settle()

    assert [] == tiers.take(links(1))
    assert tiers.fetch(links(1), block_tokens=1) is None
    assert [] == list(tmp_path.glob("blocks/*"))
    tiers.close()


def test_a_block_that_two_bring_at_once_is_kept_once(host_only, monkeypatch):
    (link,) = links(1)
    read_slot = host_only._memory.read_slot

    def meanwhile(slot, into):
        monkeypatch.setattr(host_only._memory, "read_slot", read_slot)
        host_only.sink(7, link)
        read_slot(slot, into)

    monkeypatch.setattr(host_only._memory, "read_slot", meanwhile)
    host_only.sink(0, link)

    assert [7] == restored(host_only, [link])
    host_only.host.check()


def test_two_salts_share_nothing(host_only):
    host_only.sink(0, links(1, "one tenant")[0])

    assert [] == host_only.take(links(1, "another"))
    assert [0] == restored(host_only, links(1, "one tenant"))


def test_a_host_tier_that_holds_no_block_is_refused():
    with pytest.raises(ResourceError, match=r"--kv-host-bytes is 4.0 KiB, one block of this model is 4.0 KiB"):
        HostTier(SLOT_BYTES - 1, SLOT_BYTES)


def test_a_fetch_is_refused_when_computing_is_sooner_and_tried_again_now_and_then():
    worth = Worth()
    assert worth.patience_s(1, 16, 0) is not None  # unknown
    worth.block.learn(1.0, 1)
    worth.token.learn(1.0, 100)

    assert 1.0 == worth.patience_s(num_blocks=1, num_tokens=100, num_queued=0)
    assert worth.patience_s(num_blocks=1, num_tokens=99, num_queued=0) is None
    assert worth.patience_s(num_blocks=1, num_tokens=100, num_queued=1) is None
    assert 1 == sum(worth.patience_s(1, 16, 0) is not None for _ in range(32))


@given(st.floats(1e-6, 10), st.floats(1e-6, 10), st.integers(1, 50), st.integers(1, 50), st.integers(0, 50),
       st.integers(0, 500), st.integers(1, 100))  # fmt: skip
def test_what_a_wait_exposes_is_never_more_than_computing_would_take_nor_is_it_twice_what_reading_should(
    block_s, token_s, num_blocks, block_tokens, num_queued, num_beside, num_pieces
):
    worth = Worth()
    worth.block.learn(block_s, 1)
    worth.token.learn(token_s, 1)
    patience_s = worth.patience_s(num_blocks, num_blocks * block_tokens, num_queued, num_beside, num_pieces)
    read_s, compute_s = block_s * (num_blocks + num_queued), token_s * (num_blocks * block_tokens)
    waited_s = exposed_s(read_s, token_s * num_beside, num_pieces)

    if patience_s is None:
        assert waited_s > compute_s
    else:
        hidden_s = read_s - waited_s
        assert patience_s - hidden_s <= compute_s * (1 + 1e-12)
        assert patience_s <= 2 * read_s


@given(st.floats(0, 10), st.floats(0, 10), st.integers(1, 20))
def test_what_is_exposed_of_a_read_is_what_a_step_waits_that_takes_its_pieces_one_by_one(read_s, step_s, num_pieces):
    now = 0.0
    for piece in range(num_pieces):
        now = max(now, read_s * (piece + 1) / num_pieces) + step_s / num_pieces

    assert now - step_s == pytest.approx(exposed_s(read_s, step_s, num_pieces), abs=1e-9)


def test_closing_ends_the_threads(tmp_path):
    before = threading.active_count()
    tiers = with_files(tmp_path)
    assert before + 2 == threading.active_count()
    tiers.close()

    assert before == threading.active_count()


def test_what_copying_takes_is_measured_and_a_slot_is_swapped_out_only_where_computing_takes_longer():
    now = [0.0]
    memory = Slots()

    def slowly(move):
        def moved(*arguments):
            now[0] += 1.0
            move(*arguments)

        return moved

    memory.read_slot, memory.write_slot = slowly(memory.read_slot), slowly(memory.write_slot)
    tiers = Tiers(IDENTITY, memory, HostTier(3 * SLOT_BYTES, SLOT_BYTES), clock=lambda: now[0])
    tiers.give_up(0, links(3)[0], block_tokens=16)  # nothing is known yet
    assert [0] == restored(tiers, links(3)[:1])
    assert (1.0, 2.0) == (tiers.worth.sink.seconds, tiers.worth.restore.seconds)  # two pieces are written

    tiers.worth.token.learn(3.0, 16)
    tiers.give_up(1, links(3)[1], block_tokens=16)
    assert tiers.host.find(links(3)[1].name) is not None
    tiers.give_up(2, links(3)[2], block_tokens=15)
    assert tiers.host.find(links(3)[2].name) is None
    tiers.give_up(1, links(3)[1], block_tokens=15)  # it is kept already: there is nothing to choose

    tiers.demand.share = 0.5
    tiers.give_up(2, links(3)[2], block_tokens=16)  # it pays where all are wanted again
    assert tiers.host.find(links(3)[2].name) is None

    assert [] == tiers.take_if_sooner(links(3)[:2], block_tokens=10)
    taken = tiers.take_if_sooner(links(3)[:2], block_tokens=11)
    assert 2 == len(taken)
    assert 1 + 1 + 2 == tiers.counts.cheaper
    tiers.let_go(taken)
    del taken
    tiers.close()


@given(st.floats(1e-6, 10), st.floats(1e-6, 10), st.floats(1e-6, 10), st.integers(1, 200), st.none() | st.floats(0, 1))
def test_swapping_pays_where_copying_out_takes_no_longer_than_is_spared_by_what_is_wanted_again(
    sink_s, restore_s, token_s, tokens, share
):
    worth = Worth()
    for rate, seconds in ((worth.sink, sink_s), (worth.restore, restore_s), (worth.token, token_s)):
        rate.learn(seconds, 1)

    spared_s = token_s * tokens - restore_s
    assert (sink_s <= (spared_s if share is None else share * spared_s)) == worth.pays_to_sink(tokens, share)
    assert (restore_s <= token_s * tokens) == worth.pays_to_restore(tokens)


def test_what_does_not_pay_is_done_all_the_same_once_in_a_while():
    worth = Worth()
    worth.restore.learn(1.0, 1)
    worth.token.learn(1e-3, 1)

    assert 2 == sum(worth.pays_to_restore(16) for _ in range(64))
    assert 2 == sum(worth.pays_to_sink(16, 0.5) for _ in range(64))
