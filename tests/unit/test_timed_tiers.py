import json
from array import array
from dataclasses import replace
from math import inf

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_capacity import SEVEN_B
from trivet.base.errors import ResourceError
from trivet.cli.replay import replay
from trivet.framework.engine.cost_model import CostModel, Rates
from trivet.framework.engine.prefixes import NOBODY
from trivet.framework.engine.replay.clock import Clock
from trivet.framework.engine.replay.simulation import Simulation
from trivet.framework.engine.replay.timed_stores import Behind, TimedFiles
from trivet.framework.engine.replay.timed_tiers import TimedTiers
from trivet.framework.engine.replay.trace import Arrival
from trivet.framework.engine.targets import Targets
from trivet.framework.graph.cost import StepCost
from trivet.framework.memory.chain import Chain
from trivet.framework.memory.file_tier import HEADER_BYTES
from trivet.framework.memory.slots import SlotPool
from trivet.framework.memory.worth import exposed_s

SLOT_BYTES = 1 << 20
FILE_BYTES = SLOT_BYTES + HEADER_BYTES
COST = StepCost(body_bytes=100, head_bytes=10, context_bytes=1, token_flops=50, row_flops=5, attended_flops=1)
# A token of prefill takes 5 ms and more: a slot of 4 at least 20.
FAST = Behind(SLOT_BYTES, 64 * SLOT_BYTES, inf, 256 * FILE_BYTES, SLOT_BYTES / 1e-3, 1)
SLOW = replace(FAST, folder_bytes_per_s=SLOT_BYTES / 10)
prompts = st.lists(st.integers(0, 5), max_size=4, unique=True).map(tuple)
arrivals = st.lists(
    st.builds(Arrival, st.floats(0, 9), st.integers(1, 40), st.integers(1, 20), prompts, st.just(8)),
    min_size=1, max_size=20,
).map(lambda drawn: sorted(drawn, key=lambda each: each.at_s))  # fmt: skip
behinds = st.builds(
    Behind, st.just(SLOT_BYTES), st.integers(1, 20).map(lambda count: count * SLOT_BYTES),
    st.sampled_from([1e7, 1e9, inf]), st.none() | st.integers(1, 20).map(lambda count: count * FILE_BYTES),
    st.sampled_from([1e5, 1e7, 1e8, 1e9]), st.sampled_from([1, 3]),
)  # fmt: skip


def served(asked, behind, num_slots=20, max_running=4):
    costs = CostModel(COST, Rates(1e-3, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4))
    simulation = Simulation(SlotPool(num_slots, 4), costs, Targets(), 80, 16, max_running, behind)
    return simulation.run(asked)


def again_after_others(num_others: int = 4) -> list[Arrival]:
    """A prompt, as many others as push it out of a pool of 20 slots, and the same again; none waits for another."""
    blocks = [(1,), *((10 + i,) for i in range(num_others)), (1,)]
    return [Arrival(50.0 * i, 33, 1, each, 32) for i, each in enumerate(blocks)]


@given(arrivals, behinds, st.integers(15, 30))
def test_every_request_ends_with_any_tiers_and_nothing_stays_held_or_pinned(asked, behind, num_slots):
    found = served(asked, behind, num_slots)  # checks the pool and the tiers when it is through

    assert len(asked) == found.num_finished
    assert 0 <= found.hit_rate + found.host_hit_rate + found.files_hit_rate <= 1
    assert behind.folder_bytes is not None or 0 == found.read_s == found.files_hit_rate


@given(arrivals, behinds)
def test_a_trace_replayed_twice_with_tiers_is_served_the_same(asked, behind):
    assert served(asked, behind) == served(asked, behind)


@given(arrivals, st.sampled_from([FAST, SLOW]))
def test_where_the_pool_keeps_everything_files_change_nothing(asked, behind):
    without, with_tiers = (served(asked, each, num_slots=1000) for each in (None, behind))

    assert without == replace(with_tiers, read_s=0.0)


def test_a_prefix_that_the_pool_gave_up_comes_from_files_sooner_than_it_is_computed():
    without, with_tiers = (served(again_after_others(), each) for each in (None, FAST))

    assert (0, 0) == (without.hit_rate, without.files_hit_rate)
    assert 32 / (6 * 33) == pytest.approx(with_tiers.files_hit_rate + with_tiers.host_hit_rate)
    assert with_tiers.ttft_s["p50"] == pytest.approx(without.ttft_s["p50"])
    assert with_tiers.duration_s < without.duration_s - 0.1  # of the last, all but a token


def test_reading_is_waited_for_where_a_step_cannot_begin_before_and_hidden_but_for_a_piece_where_it_can():
    few = replace(FAST, host_bytes=8 * SLOT_BYTES)  # what is in files is not in host memory any more
    whole, by_piece = (served(again_after_others(), replace(few, num_pieces=pieces)) for pieces in (1, 4))

    assert 8e-3 == pytest.approx(whole.read_s) == pytest.approx(by_piece.read_s)
    assert 8e-3 == pytest.approx(whole.stalled_s)
    assert exposed_s(8e-3, 1e-3 + 50e-4 + 33e-4 + 1e-4 + 10e-4, 4) == pytest.approx(by_piece.stalled_s)


def test_a_store_slower_than_computing_is_waited_for_once_and_left_alone():
    asked = [replace(each, at_s=each.at_s + 300 * turn) for turn in range(4) for each in again_after_others()]
    found = served(asked, replace(SLOW, host_bytes=8 * SLOT_BYTES))

    assert 10 == found.read_s  # a block, which stays in host memory from then on
    assert 4 / (24 * 33) == pytest.approx(found.files_hit_rate)
    assert 32 * 50e-4 < found.stalled_s < 0.3  # as long as computing would have taken


def test_copying_a_slot_takes_the_time_of_who_computes():
    slow_copies = replace(FAST, folder_bytes=None, host_bytes_per_s=SLOT_BYTES / 1e-2)
    without, with_tiers = (served(again_after_others(), each) for each in (None, slow_copies))

    assert 0 < with_tiers.host_hit_rate
    assert with_tiers.ttft_s["p90"] > without.ttft_s["p50"]  # some wait for slots that are copied out first


@given(st.integers(1, 20), st.floats(1e-4, 1), st.floats(1e-4, 10), st.integers(1, 8))
def test_a_step_waits_for_what_comes_while_it_runs_as_long_as_the_engine_reckons(num_blocks, block_s, step_s, pieces):
    tiers, links = with_blocks(num_blocks, replace(FAST, folder_bytes_per_s=SLOT_BYTES / block_s, num_pieces=pieces))
    fetch = tiers.fetch(links, 4)
    assert fetch is not None
    fetch.until_s = inf
    tiers.bring(fetch, tiers.reserve(fetch, links), list(range(num_blocks)), 0)
    gate = fetch.arrival.gate

    assert 0 == tiers.stall_s([], step_s)
    assert exposed_s(num_blocks * block_s, step_s, pieces) == pytest.approx(tiers.stall_s([gate], step_s))
    assert not gate.has_failed

    tiers.end(fetch)
    del fetch
    tiers.close()


def test_what_comes_too_late_is_not_waited_for():
    tiers, links = with_blocks(4, replace(FAST, num_pieces=2))
    fetch = tiers.fetch(links, 4)
    assert fetch is not None
    fetch.until_s = 3e-3  # of 4 ms; half of them are there by then
    tiers.bring(fetch, tiers.reserve(fetch, links), [0, 1, 2, 3], 0)

    assert 2e-3 + 1e-3 == pytest.approx(tiers.stall_s([fetch.arrival.gate], 0.0))
    assert fetch.arrival.gate.has_failed

    tiers.end(fetch)
    del fetch
    tiers.close()


def with_blocks(count: int, behind: Behind) -> tuple[TimedTiers, list]:
    """Tiers that have so many blocks in files, and none in host memory; it is 0 s."""
    tiers = TimedTiers(behind, Clock())
    links = Chain(NOBODY, "").extend(array("i", range(4 * count)), 4, count)
    for link in links:
        tiers.files._kept[link.name] = (0,) * behind.num_pieces
    return tiers, links


def test_files_give_up_what_was_used_longest_ago_and_never_what_is_pinned():
    clock = Clock()
    files = TimedFiles(3 * FILE_BYTES, FAST, clock)
    links = Chain(NOBODY, "").extend(array("i", range(6)), 1, 6)
    files.publish([(link, array("B"), ()) for link in links[:3]])
    files.pin(links[:1])
    files.begin(links[1])
    files.publish([(link, array("B"), ()) for link in links[2:5]])

    assert [True, False, False, True, True] == [files.holds(link) for link in links[:5]]
    assert 5e-3 == pytest.approx(clock())
    assert 2 == files.counts.evicted


def test_the_command_serves_a_trace_without_tiers_and_with_them(tmp_path):
    lines = [{"timestamp": 60_000 * i, "input_length": 4096, "output_length": 2, "hash_ids": [*range(first, first + 8)]}
             for i, first in enumerate((0, 10, 20, 0))]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    asked = [str(tmp_path / "a.jsonl"), str(tmp_path / "config.json"), "--device", "910B3", "--kv-memory", "256MiB"]
    options = ["--kv-host-bytes", "1GiB", "--kv-dir-bytes", "4GiB", "--kv-dir-bandwidth", "2GB/s"]
    told = CliRunner().invoke(replay, [*asked, *options])
    document = json.loads(CliRunner().invoke(replay, [*asked, *options, "--json"]).stdout)

    assert "with tiers   1.0 GiB at 23.3 GiB/s of host memory, 4.0 GiB at 2.0 GiB/s of files" in told.output, (
        told.output
    )
    assert 2 == told.output.count("first token")
    assert 0 == document["hit_rate"] < document["with_tiers"]["host_hit_rate"]
    assert document["with_tiers"]["duration_s"] < document["duration_s"]
    with pytest.raises(ResourceError, match=r"--kv-dir-bytes is 1\.0 MiB, one block of this model is 7\.0 MiB"):
        CliRunner().invoke(replay, [*asked, "--kv-dir-bytes", "1MiB"], catch_exceptions=False)
    assert "'fast' is not a size" in CliRunner().invoke(replay, [*asked, "--kv-dir-bandwidth", "fast"]).output
