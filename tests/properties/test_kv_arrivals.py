"""The promise of the house where a step begins before the files are read: layer by layer, and block by block, its
prefix comes to the slots while it runs, and the answer is the same bits; also when a byte has changed, a read fails,
the store stalls, or the request leaves meanwhile."""

import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.disturbed import Decided, Schedule, alone, leave
from tests.properties.test_kv_tiers import IDENTITY, MEMORY, arrivals, pretend
from tests.properties.test_same_answer import Answer, answer, serve
from tests.system.tiny import FAMILIES, cpu_plan
from trivet.base.dtypes import Array, DType
from trivet.framework.engine.cost_model import CostModel, Rates, Work
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import new_request
from trivet.framework.graph.cost import step_cost
from trivet.framework.graph.cpu_plan import CpuPlan
from trivet.framework.graph.plan import Limits
from trivet.framework.graph.side_by_side import SideBySide, side_by_side
from trivet.framework.memory.block import HEADER_BYTES
from trivet.framework.memory.chain import Chain, Link
from trivet.framework.memory.file_tier import FileTier
from trivet.framework.memory.host_tier import HostBlock, HostTier
from trivet.framework.memory.slot_memory import SlotMemory
from trivet.framework.memory.tiers import Fetch, Tiers

PATIENCE_S = 60.0  # for what happens in milliseconds, or a test fails
PROMPT = [3 + i % 200 for i in range(75)]  # four blocks of 16, and eleven tokens behind them
PARAMS = SamplingParams(temperature=0, max_tokens=4, logprobs=1, ignore_eos=True)
NUM_LAYERS, NUM_BLOCKS = 4, 4


class Reluctant(FileTier):
    """Files that give no block as a whole before a step waits for them, or for some time."""

    is_wanted: threading.Event
    hesitates_s = PATIENCE_S

    def read(self, link: Link, into: Array) -> tuple[int, ...] | None:
        self.is_wanted.wait(self.hesitates_s)
        return super().read(link, into)


class Telling(Tiers):
    """Tells its files as soon as a step waits."""

    def bring(self, fetch: Fetch, blocks: Sequence[HostBlock], slots: Sequence[int], first: int) -> None:
        super().bring(fetch, blocks, slots, first)
        assert isinstance(self.files, Reluctant)
        self.files.is_wanted.set()


def plan(
    family: str = "llama", dtype: DType = "bfloat16", num_threads: int = 2, num_slots: int = 20, max_tokens: int = 64,
    max_context: int = 96,
) -> CpuPlan:  # fmt: skip
    limits = Limits(max_tokens=max_tokens, max_sequences=8, max_rows=8, max_context=max_context)
    return cpu_plan(family, dtype, num_threads=num_threads, num_slots=num_slots, limits=limits, is_fetched=True)


def engine_of(
    memory: CpuPlan, folder: str, files_of: type[Reluctant] = Reluctant, num_host: int = 20, num_lanes: int = 1
) -> tuple[Engine, Reluctant]:
    files = files_of(Path(folder), 1 << 30, IDENTITY, memory.pieces)
    files.is_wanted = threading.Event()
    size = memory.slot_bytes
    lanes = side_by_side(memory, [None, None], 1) if num_lanes == 2 else None
    tiers = Telling(IDENTITY, memory, HostTier(num_host * size, size), files)
    return Engine(memory, None, lanes=lanes, tiers=tiers), files


def ask(engine: Engine, request_id: str = "it") -> Answer:
    engine.add(new_request(request_id, PROMPT, PARAMS))
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    return answer(deltas, request_id)


def kept(folder: str, make: Callable[[], CpuPlan] = plan) -> Answer:
    """The answer, computed; what it computed is in files after it."""
    memory = make()
    engine, _ = engine_of(memory, folder)
    computed = ask(engine)
    engine.close()
    return computed


@pytest.fixture
def folder() -> Iterator[str]:
    with TemporaryDirectory(dir=MEMORY) as name:
        yield name


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefix_that_comes_while_its_step_runs_gives_the_same_bits(family: str, dtype: DType, folder: str) -> None:
    wanted = kept(folder, lambda: plan(family, dtype))
    engine, _ = engine_of(plan(family, dtype, num_threads=1), folder)

    assert wanted == ask(engine)
    assert (1, 0) == (engine.kv_counts().prefixes.arrived, engine.kv_counts().prefixes.failed)
    assert 16 * NUM_BLOCKS == engine.kv_counts().prefixes.files
    engine.close()


def test_layers_are_computed_while_the_blocks_of_later_layers_are_still_to_come(folder: str) -> None:
    wanted = kept(folder)
    memory = plan()
    order = []

    class Ordered(Reluctant):
        """Gives the last layer's blocks only once the step has stored keys of the layer before it: then the attention
        of the layer before that one has run, for the keys follow from it."""

        def read_piece(self, link: Link, number: int, recorded: int, into: Array) -> bool:
            if number == NUM_LAYERS - 1 and "last layer comes" not in order:
                wait_until(lambda: stream_is_written(memory, NUM_LAYERS - 2))
                order.append("last layer comes")
            return super().read_piece(link, number, recorded, into)

    engine, _ = engine_of(memory, folder, Ordered)

    assert wanted == ask(engine)
    assert ["last layer comes"] == order
    engine.close()


def stream_is_written(memory: CpuPlan, number: int) -> bool:
    """Is anything of the stream in the slot of the prompt's end? Those before it are for what comes from files."""
    ends, into = memory.pieces[number], np.empty(memory.slot_bytes, np.uint8)
    filled = 0
    for slot in range(memory.num_slots):
        memory.read_slot(slot, into)
        filled += bool(into[ends].any())
    return filled > NUM_BLOCKS


def wait_until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.001)):
        if holds():
            return
        pause.wait(0.001)
    raise AssertionError("it never came to pass: the step waited for all before it began")


@pytest.mark.parametrize("layer", range(NUM_LAYERS))
@pytest.mark.parametrize("block", range(NUM_BLOCKS))
def test_a_byte_changed_in_any_layer_of_any_block_costs_a_step_and_never_an_answer(
    layer: int, block: int, folder: str
) -> None:
    wanted = kept(folder)
    name = Chain(IDENTITY, "").extend(array("i", PROMPT), 16, NUM_BLOCKS)[block].name.hex()
    (path,) = Path(folder).glob(f"blocks/{name}.*")
    whole = bytearray(path.read_bytes())
    whole[HEADER_BYTES + plan().pieces[layer].start + 7] ^= 64
    path.write_bytes(whole)
    engine, files = engine_of(plan(), folder)

    assert wanted == ask(engine)
    assert 1 == files.counts.corrupt
    assert (0, 1) == (engine.kv_counts().prefixes.arrived, engine.kv_counts().prefixes.failed)
    engine.close()


def test_a_store_that_stalls_is_not_waited_for_and_writes_to_no_slot_afterwards(folder: str) -> None:
    wanted = kept(folder)
    memory = plan()
    goes_on = threading.Event()

    class Stalling(Reluctant):
        def read_piece(self, link: Link, number: int, recorded: int, into: Array) -> bool:
            if number == 1:
                goes_on.wait(PATIENCE_S)
            return super().read_piece(link, number, recorded, into)

    engine, _ = engine_of(memory, folder, Stalling)
    engine.tiers.worth.token.learn(1e-3, 1)  # type: ignore[union-attr]  # so 64 tokens are worth 64 ms

    assert wanted == ask(engine)
    assert 1 == engine.kv_counts().prefixes.failed

    before = [slot_bytes(memory, slot) for slot in range(memory.num_slots)]
    goes_on.set()
    engine.close()  # joins the thread that reads, once it is through with what it had begun

    assert before == [slot_bytes(memory, slot) for slot in range(memory.num_slots)]


def slot_bytes(memory: SlotMemory, slot: int) -> bytes:
    into = np.empty(memory.slot_bytes, np.uint8)
    memory.read_slot(slot, into)
    return into.tobytes()


class Unreliable(Reluctant):
    """A store that fails at any point, and hesitates only as long as nobody notices."""

    hesitates_s = 0.0005
    fails: Iterator[bool]

    def begin(self, link: Link) -> tuple[int, ...] | None:
        return None if next(self.fails) else super().begin(link)

    def read_piece(self, link: Link, number: int, recorded: int, into: Array) -> bool:
        if next(self.fails):
            into[:] = 255  # what a read that failed half way may leave
            return False
        return super().read_piece(link, number, recorded, into)


faults = st.lists(st.sampled_from([False] * 9 + [True]), max_size=60)


@settings(max_examples=settings().max_examples // 3)
@given(first=arrivals, second=arrivals, num_slots=st.sampled_from([18, 20, 40]), num_host=st.sampled_from([1, 8, 40]),
       fails=faults, leaves=st.lists(st.integers(0, 5), max_size=4), num_lanes=st.sampled_from([1, 2]))  # fmt: skip
def test_failing_stores_and_requests_that_leave_change_no_answer_and_leave_nothing_held(
    first: Schedule, second: Schedule, num_slots: int, num_host: int, fails: list[bool], leaves: list[int],
    num_lanes: int,
) -> None:  # fmt: skip
    with TemporaryDirectory(dir=MEMORY) as name:
        for schedule in (first, second, first):
            memory = pretend(num_slots)
            files = Unreliable(Path(name), 1 << 20, IDENTITY, memory.pieces)
            files.is_wanted, files.fails = threading.Event(), cycle([*fails, False])
            host = HostTier(num_host * memory.slot_bytes, memory.slot_bytes)
            tiers = Telling(IDENTITY, memory, host, files)
            tiers.worth = Decided(patience_s=PATIENCE_S)  # it is the store that decides what becomes of a step
            limits = memory.limits
            lanes = SideBySide(memory.beside(limits.max_sequences), memory.beside(limits.max_tokens), (), ())
            engine = Engine(memory, None, lanes=lanes if num_lanes == 2 else None, tiers=tiers)
            leave(engine, schedule, leaves)

            assert alone(lambda: pretend(18), schedule) == serve(engine, schedule)

            engine.close()  # checks that no block is pinned


# Long prompts of two tokens have whole blocks in common.
long_arrivals = st.lists(
    st.tuples(
        st.lists(st.sampled_from([3, 4]), min_size=1, max_size=3).flatmap(
            lambda start: st.integers(1, 75 - len(start)).map(lambda length: (start * 75)[:length])
        ),
        st.builds(SamplingParams, temperature=st.sampled_from([0, 0.9]), seed=st.integers(0, 2),
                  max_tokens=st.integers(1, 12), logprobs=st.just(1), ignore_eos=st.just(True)),
        st.integers(0, 8),
    ),
    min_size=1,
    max_size=5,
)  # fmt: skip


@settings(max_examples=settings().max_examples // 3)
@given(schedule=long_arrivals, num_slots=st.sampled_from([6, 9, 20]), num_host=st.sampled_from([1, 3, 20]),
       fails=faults, num_lanes=st.sampled_from([1, 2]))  # fmt: skip
def test_real_kernels_give_the_same_bits_with_prefixes_coming_while_they_run(
    schedule: Schedule, num_slots: int, num_host: int, fails: list[bool], num_lanes: int
) -> None:
    computed = plan(num_threads=1)
    wanted = alone(lambda: computed, schedule)
    with TemporaryDirectory(dir=MEMORY) as name:
        for _ in range(2):  # the second finds files
            engine, files = engine_of(plan(num_slots=num_slots), name, Unreliable, num_host, num_lanes)
            assert isinstance(files, Unreliable)
            files.fails = cycle([*fails, False])

            assert wanted == serve(engine, schedule)

            engine.close()


class Sluggish(Unreliable):
    """A store of which every piece takes as long as it likes."""

    hesitates_s = PATIENCE_S
    takes_s: Iterator[float]

    def read_piece(self, link: Link, number: int, recorded: int, into: Array) -> bool:
        time.sleep(next(self.takes_s))
        return super().read_piece(link, number, recorded, into)


@settings(max_examples=settings().max_examples // 12)
@given(prefix=st.integers(500, 680), rest=st.integers(1, 110), takes_s=st.lists(st.sampled_from([0.0, 0.0, 2e-4, 3e-3]),
       min_size=1, max_size=9), fails=faults, num_threads=st.sampled_from([1, 2]))  # fmt: skip
def test_a_prefix_of_several_spans_gives_the_same_bits_however_its_pieces_come(
    prefix: int, rest: int, takes_s: list[float], fails: list[bool], num_threads: int
) -> None:
    def make() -> CpuPlan:
        return plan(num_threads=num_threads, num_slots=60, max_tokens=120, max_context=800)

    start = [3 + i * i % 200 for i in range(prefix)]
    schedule: Schedule = [([*start, *(7 + i % 90 for i in range(rest))], PARAMS, 0)]
    with TemporaryDirectory(dir=MEMORY) as name:
        engine, _ = engine_of(make(), name, num_host=60)
        assert serve(engine, [(start, PARAMS, 0)])
        engine.close()
        engine, files = engine_of(make(), name, Sluggish, num_host=60)
        assert isinstance(files, Sluggish) and engine.tiers is not None
        engine.tiers.worth = Decided(patience_s=PATIENCE_S)
        files.fails, files.takes_s = cycle([*fails, False]), cycle(takes_s)

        assert alone(make, schedule) == serve(engine, schedule)
        assert 1 == engine.kv_counts().prefixes.arrived + engine.kv_counts().prefixes.failed

        engine.close()


def test_before_any_step_was_measured_the_model_of_costs_says_what_a_prefix_is_worth(folder: str) -> None:
    memory = plan()
    files = FileTier(Path(folder), 1 << 30, IDENTITY, memory.pieces)
    tiers = Tiers(IDENTITY, memory, HostTier(memory.slot_bytes, memory.slot_bytes), files)
    costs = CostModel(step_cost(memory.graph), Rates())
    engine = Engine(memory, None, tiers=tiers, costs=costs)

    assert costs.predict(Work().plus(0, 64)) / 64 == tiers.worth.token.seconds
    engine.close()
