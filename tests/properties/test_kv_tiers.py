"""The promise of the house through every tier: a request's tokens and log probabilities are the same bits whether its
prefix is computed, found in the pool, or comes back from host memory or a file; after a preemption, an eviction or a
restart; and when any byte that was stored has changed meanwhile."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.disturbed import Decided, Schedule, alone, leave
from tests.properties.test_same_answer import Answer, answer, plan, serve
from tests.unit.pretend_plan import PretendPlan
from trivet.base.dtypes import Array
from trivet.base.formats import KvFormat
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import new_request
from trivet.framework.graph.plan import Limits
from trivet.framework.memory.block import HEADER_BYTES
from trivet.framework.memory.chain import Identity, Link
from trivet.framework.memory.file_tier import FileTier
from trivet.framework.memory.host_tier import HostTier
from trivet.framework.memory.reclaim import ReclaimName
from trivet.framework.memory.tiers import Tiers

# What is on disk when is for test_file_tier.py: here nobody waits for a disk.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
IDENTITY = Identity(b"m" * 32, b"l" * 32)

# Prompts of two tokens have prefixes in common, of every length.
arrivals = st.lists(
    st.tuples(
        st.lists(st.sampled_from([3, 4]), min_size=1, max_size=50),
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0, 0.9]),
            seed=st.integers(0, 2),
            max_tokens=st.integers(1, 20),
            logprobs=st.just(1),
            ignore_eos=st.just(True),
        ),
        st.integers(0, 8),
    ),
    min_size=1,
    max_size=6,
)
corruptions = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 10**6), st.integers(1, 255)), max_size=4)


def pretend(num_slots: int) -> PretendPlan:
    limits = Limits(max_tokens=32, max_sequences=4, max_rows=4, max_context=72)
    return PretendPlan(num_slots, 4, 23, limits)


def tiers_of(
    memory: PretendPlan, num_host: int, folder: Path | None, num_files: int, swaps: Iterable[bool] = (True,)
) -> Tiers:
    size = memory.slot_bytes
    block = -(-(HEADER_BYTES + size) // 4096) * 4096
    files = None if folder is None else FileTier(folder, num_files * block, IDENTITY, memory.pieces)
    tiers = Tiers(IDENTITY, memory, HostTier(num_host * size, size), files)
    tiers.worth = Decided(swaps)
    return tiers


def change_bytes(folder: Path, corruptions: list[tuple[int, int, int]]) -> None:
    stored = sorted(folder.glob("blocks/*"))
    for number, offset, flipped in corruptions:
        if stored:
            path = stored[number % len(stored)]
            whole = bytearray(path.read_bytes())
            whole[offset % len(whole)] ^= flipped
            path.write_bytes(whole)


@settings(max_examples=settings().max_examples // 3)
@given(
    first=arrivals,
    second=arrivals,
    num_slots=st.sampled_from([18, 20, 40]),  # eighteen hold one sequence of full length
    num_host=st.sampled_from([1, 2, 8, 40]),
    num_files=st.sampled_from([None, 1, 3, 100]),
    changed=corruptions,
    swaps=st.lists(st.booleans(), max_size=5),
    reclaim=st.sampled_from(["cost", "lru"]),
)
def test_an_answer_is_the_same_through_every_tier_and_a_restart_swapped_or_computed(
    first: Schedule, second: Schedule, num_slots: int, num_host: int, num_files: int | None,
    changed: list[tuple[int, int, int]], swaps: list[bool], reclaim: ReclaimName,
) -> None:  # fmt: skip
    with TemporaryDirectory(dir=MEMORY) as name:
        folder = None if num_files is None else Path(name)
        for schedule in (first, second, first):
            memory = pretend(num_slots)
            tiers = tiers_of(memory, num_host, folder, num_files or 0, swaps)
            engine = Engine(memory, None, tiers=tiers, reclaim=reclaim)

            assert alone(lambda: pretend(18), schedule) == serve(engine, schedule)

            engine.close()
            if folder is not None:
                change_bytes(folder, changed)


class Failing(FileTier):
    """Files on a disk that is full or broken whenever `fails` says so."""

    fails: Iterator[bool]

    def read(self, link: Link, into: Array) -> int | None:
        if next(self.fails):
            into[:] = 255  # what a read that failed half way may leave
            return None
        return super().read(link, into)

    def publish(self, blocks: Sequence[tuple[Link, Array, int]]) -> None:
        if not next(self.fails):
            super().publish(blocks)


@settings(max_examples=settings().max_examples // 3)
@given(first=arrivals, second=arrivals, num_host=st.sampled_from([1, 2, 40]), fails=st.lists(st.booleans(), min_size=1),
       leaves=st.lists(st.integers(0, 5)))  # fmt: skip
def test_failing_files_and_requests_that_leave_change_no_answer_and_leave_nothing_held(
    first: Schedule, second: Schedule, num_host: int, fails: list[bool], leaves: list[int],
) -> None:  # fmt: skip
    with TemporaryDirectory(dir=MEMORY) as name:
        for schedule in (first, second, first):
            memory = pretend(18)
            files = Failing(Path(name), 1 << 20, IDENTITY, memory.pieces)
            files.fails = cycle(fails)
            host = HostTier(num_host * memory.slot_bytes, memory.slot_bytes)
            engine = Engine(memory, None, tiers=Tiers(IDENTITY, memory, host, files))
            leave(engine, schedule, leaves)

            assert alone(lambda: pretend(18), schedule) == serve(engine, schedule)

            engine.close()  # checks that no block is pinned


@settings(max_examples=settings().max_examples // 3)
@given(schedule=arrivals, num_slots=st.sampled_from([5, 8, 20]), num_host=st.sampled_from([1, 3, 20]),
       swaps=st.lists(st.booleans(), max_size=5), kv_dtype=st.sampled_from([None, "int8"]))  # fmt: skip
def test_real_kernels_give_the_same_bits_from_a_tier(
    schedule: Schedule, num_slots: int, num_host: int, swaps: list[bool], kv_dtype: KvFormat | None
) -> None:
    computed = plan("llama", "bfloat16", 1, 20, kv_dtype)
    wanted = [serve(Engine(computed, None), [(prompt, each, 0)])[0] for prompt, each, _ in schedule]
    with TemporaryDirectory(dir=MEMORY) as name:
        for _ in range(2):  # the second finds files
            memory = plan("llama", "bfloat16", 2, num_slots, kv_dtype)
            size = memory.slot_bytes
            files = FileTier(Path(name), 1 << 30, IDENTITY, memory.pieces)
            tiers = Tiers(IDENTITY, memory, HostTier(num_host * size, size), files)
            tiers.worth = Decided(swaps)
            engine = Engine(memory, None, tiers=tiers)

            assert wanted == serve(engine, schedule)

            engine.close()


def test_a_prefix_is_found_in_each_tier_and_only_under_its_salt() -> None:
    prompt = [5 + i % 7 for i in range(41)]  # ten blocks and the token that is always computed
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=1)

    def found(engine: Engine, salt: str = "") -> tuple[int, int, int, Answer]:
        before = (engine.kv_counts().prefixes.pool, engine.kv_counts().prefixes.host, engine.kv_counts().prefixes.files)
        engine.add(new_request("it", prompt, params, salt))
        deltas = []
        while engine.has_work:
            deltas += engine.step()
        after = (engine.kv_counts().prefixes.pool, engine.kv_counts().prefixes.host, engine.kv_counts().prefixes.files)
        pool, host, files = (a - b for a, b in zip(after, before, strict=True))
        return pool, host, files, answer(deltas, "it")

    def other(engine: Engine) -> None:
        engine.add(new_request("other", [9] * 68, params))
        while engine.has_work:
            engine.step()

    with TemporaryDirectory(dir=MEMORY) as name:
        memory = pretend(18)
        engine = Engine(memory, None, tiers=tiers_of(memory, 60, Path(name), 100))
        *nothing, wanted = found(engine)
        assert [0, 0, 0] == nothing
        assert (40, 0, 0, wanted) == found(engine)
        assert (0, 0, 0, wanted) == found(engine, "another tenant")
        other(engine)  # takes every slot
        assert (0, 40, 0, wanted) == found(engine)
        engine.close()

        memory = pretend(18)
        engine = Engine(memory, None, tiers=tiers_of(memory, 60, Path(name), 100))
        assert (0, 0, 40, wanted) == found(engine)
        engine.close()


def test_who_stepped_back_reads_from_files_what_the_pool_and_host_memory_gave_up_meanwhile() -> None:
    def asked(*prompt: int, max_tokens: int) -> tuple[list[int], SamplingParams, int]:
        return list(prompt), SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=1), 0

    schedule = [asked(5, 6, 7, max_tokens=60), asked(*range(3, 20), max_tokens=40)]
    with TemporaryDirectory(dir=MEMORY) as name:
        memory = pretend(18)
        engine = Engine(memory, None, tiers=tiers_of(memory, 6, Path(name), 100))
        assert engine.tiers is not None
        engine.tiers.worth = Decided(patience_s=60.0)
        for number, (prompt, params, _) in enumerate(schedule):
            engine.add(new_request(str(number), prompt, params))
        deltas = []
        while engine.has_work:
            deltas += engine.step()
            engine.tiers.settle()

        assert alone(lambda: pretend(18), schedule) == [answer(deltas, str(number)) for number in range(2)]
        assert 0 < engine.kv_counts().prefixes.files
        engine.close()


@settings(max_examples=settings().max_examples // 3)
@given(
    schedule=arrivals,
    pinned=st.lists(st.lists(st.sampled_from([3, 4]), min_size=4, max_size=16), min_size=1, max_size=2),
    num_slots=st.sampled_from([26, 40]),  # eighteen, and those of two pinned prompts
    swaps=st.lists(st.booleans(), max_size=5),
    leaves=st.lists(st.integers(0, 5), max_size=4),
)
def test_what_is_pinned_changes_no_answer_and_is_in_the_pool_whatever_comes(
    schedule: Schedule, pinned: list[list[int]], num_slots: int, swaps: list[bool], leaves: list[int]
) -> None:
    memory = pretend(num_slots)
    engine = Engine(memory, None, tiers=tiers_of(memory, 2, None, 0, swaps))
    for prompt in pinned:
        engine.pin(prompt)
    blocks = {tuple(prompt[:end]) for prompt in pinned for end in range(4, len(prompt) + 1, 4)}
    leave(engine, schedule, leaves)

    assert alone(lambda: pretend(18), schedule) == serve(engine, schedule)
    assert len(blocks) == engine.kv_counts().pinned
    before = engine.kv_counts().prefixes.pool
    for prompt in pinned:
        serve(engine, [([*prompt, 5], SamplingParams(max_tokens=1), 0)])
    assert sum(len(prompt) // 4 * 4 for prompt in pinned) == engine.kv_counts().prefixes.pool - before
    engine.close()


def test_a_pinned_prompt_is_read_from_files_after_a_restart_however_much_was_written_since() -> None:
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    with TemporaryDirectory(dir=MEMORY) as name:
        memory = pretend(26)
        engine = Engine(memory, None, tiers=tiers_of(memory, 4, Path(name), 8))
        engine.pin([3] * 16)
        for token in range(4, 9):
            serve(engine, [([token] * 40, params, 0)])
            assert engine.tiers is not None
            engine.tiers.settle()
        assert engine.kv_counts().files.evicted > 0
        engine.close()

        memory = pretend(26)
        engine = Engine(memory, None, tiers=tiers_of(memory, 4, Path(name), 8))
        assert engine.tiers is not None
        engine.tiers.worth = Decided(patience_s=60.0)
        engine.pin([3] * 16)
        assert 12 == engine.kv_counts().prefixes.files  # all but the slot with the last token
        engine.close()
