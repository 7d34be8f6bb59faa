"""Ranges of files come into memory whole and in place by every engine; what goes wrong is said and leaves nothing."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from trivet._native import Hash, Reading, residency, ring_refusal
from trivet.base.errors import CheckpointError, ResourceError
from trivet.base.units import MIB
from trivet.framework.memory.arena import Arena
from trivet.framework.model.loading import extents as placing
from trivet.framework.model.loading import read as reading_module
from trivet.framework.model.loading.engines import ENGINES, EngineName, choose
from trivet.framework.model.loading.extents import BLOCK_BYTES, Range, place
from trivet.framework.model.loading.read import ReadOptions, opened, read_extents, read_into_arena
from trivet.framework.model.loading.source import FileFacts, Source

BYTES = np.random.default_rng(0).bytes(3 * MIB + 17)
FACTS = FileFacts(Path("model"), 1 << 30, "ext4", None)


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights"
        path.write_bytes(BYTES)
        yield path


def digest(data: bytes) -> int:
    return int(xxhash.xxh3_64_intdigest(data))


def wanted(file: Path, *bounds: tuple[int, int]) -> list[Range]:
    return [Range(f"t{i}", file, a, b - a, digest(BYTES[a:b])) for i, (a, b) in enumerate(bounds)]


def ways(file: Path) -> list[EngineName]:
    """The engines that can read the file here."""
    with Source(file) as source:
        direct = source.facts.direct_refusal is None
    has_ring = direct and not ring_refusal()
    return [name for name in ENGINES if {"direct": direct, "io_uring": has_ring}.get(name, True)]


def read(ranges: list[Range], engine: EngineName | None = None, verify: bool = True) -> dict[str, bytes]:
    arena, places, _ = read_into_arena(ranges, lambda size: Arena(size, "weights"), ReadOptions(2, engine, verify))
    with arena:
        return {r.name: arena.view(places[r.name], (r.num_bytes,), np.uint8).tobytes() for r in ranges if r.num_bytes}


bounds = st.lists(st.integers(0, len(BYTES)), min_size=2, max_size=12).map(sorted)


@given(
    cuts=bounds,
    extent_bytes=st.sampled_from([1, 5000, 1 << 20]),
    gap=st.sampled_from([0, 4096, 1 << 20]),
    long_run=st.sampled_from([5000, 1 << 30]),
)
def test_every_engine_puts_any_ranges_of_a_file_in_place(
    file: Path, cuts: list[int], extent_bytes: int, gap: int, long_run: int
) -> None:
    ranges = wanted(file, *zip(cuts[::2], cuts[1::2], strict=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "_LONG_RUN_BYTES", long_run)
        patch.setattr(placing, "_EXTENT_BYTES", extent_bytes)
        patch.setattr(placing, "_GAP_BYTES", gap)
        place(ranges).check()
        for engine in ways(file):
            got = read(ranges, engine)

            for r in ranges:
                assert BYTES[r.offset : r.offset + r.num_bytes] == got.get(r.name, b"")


@given(st.lists(st.tuples(st.integers(0, 1 << 33), st.integers(1, 1 << 31)), min_size=1, max_size=8))
def test_long_runs_lie_in_memory_as_in_huge_pages_of_their_file_and_short_ones_close_together(
    runs: list[tuple[int, int]],
) -> None:
    """A run of each file, as (offset, bytes)."""
    placement = place(Range(str(i), Path(str(i)), offset, n) for i, (offset, n) in enumerate(runs))

    placement.check()
    room = 0
    for extent in placement.extents:
        is_long = extent.num_bytes >= 64 * MIB
        assert 0 == (extent.at - extent.offset) % (2 * MIB if is_long else BLOCK_BYTES)
        room += extent.num_bytes + (2 * MIB if is_long else BLOCK_BYTES) + BLOCK_BYTES
    assert placement.num_bytes <= room


@given(cuts=bounds, piece=st.sampled_from([4096, 12288]), workers=st.integers(1, 4), depth=st.sampled_from([0, 1, 3]))
def test_pieces_workers_and_depth_change_no_digest(
    file: Path, cuts: list[int], piece: int, workers: int, depth: int
) -> None:
    depth = 0 if ring_refusal() else depth
    spans = [(0, a, b - a) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    with Source(file) as source, Arena(len(BYTES), "weights") as arena:
        extent = (source.buffered, 0, len(BYTES), arena.address)
        reading = Reading([extent], spans, block=1, piece_bytes=piece, num_workers=workers, depth=depth)
        while not reading.wait(1):
            pass

    assert [digest(BYTES[a : a + n]) for _, a, n in spans] == reading.digests
    assert len(BYTES) == reading.bytes_read


@given(st.lists(st.binary(max_size=5000), max_size=4))
def test_the_hash_is_that_of_the_published_library(parts: list[bytes]) -> None:
    hashing = Hash()
    for part in parts:
        hashing.update(np.frombuffer(part, np.uint8).ctypes.data if part else 0, len(part))

    assert digest(b"".join(parts)) == hashing.digest()


def test_residency_follows_what_the_page_cache_drops_and_reads(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(BYTES)
    with path.open("rb") as opened_file:
        os.fsync(opened_file.fileno())
        os.posix_fadvise(opened_file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        cold = residency(opened_file.fileno(), 0, len(BYTES))
        opened_file.read()
        warm = residency(opened_file.fileno(), 0, len(BYTES))
    if cold is None or warm is None or cold[0] == 1:
        pytest.skip("this filesystem keeps all its files in memory, or does not say")

    assert cold[0] < 0.5 < warm[0]


@pytest.mark.parametrize(
    ("facts", "resident", "ring", "engine", "reason"),
    [
        (FACTS, 0.0, "", "io_uring", "it is not in the page cache"),
        (FACTS, None, "", "io_uring", "what is in the page cache is unknown"),
        (FACTS, 0.0, "io_uring_setup: Operation not permitted", "direct", "Operation not permitted"),
        (FACTS, 0.75, "", "buffered", "75% is in the page cache"),
        (FACTS, 1.0, "", "buffered", "100% is in the page cache"),
        (replace(FACTS, filesystem="tmpfs"), 0.0, "", "buffered", "tmpfs lies in memory"),
        (replace(FACTS, filesystem="nfs4"), 0.0, "", "buffered", "nfs4 is another machine's"),
        (replace(FACTS, filesystem="fuse.sshfs"), 0.0, "", "buffered", "fuse.sshfs is another machine's"),
        (replace(FACTS, direct_refusal="O_DIRECT: Invalid argument"), 0.0, "", "buffered", "O_DIRECT: Invalid"),
    ],
)
def test_the_engine_follows_from_what_is_true_of_the_file(
    facts: FileFacts, resident: float | None, ring: str, engine: EngineName, reason: str
) -> None:
    choice = choose(facts, resident, ring, 2)

    assert engine == choice.engine.name
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("facts", "resident", "engine", "reason"),
    [
        (FACTS, 0.9, "mapped", "90% is in the page cache"),
        (FACTS, 0.8, "buffered", "80% is in the page cache"),
        (FACTS, None, "io_uring", "what is in the page cache is unknown"),
        (replace(FACTS, filesystem="nfs4"), 1.0, "mapped", "100% is in the page cache"),
        (replace(FACTS, filesystem="tmpfs"), 0.0, "mapped", "tmpfs lies in memory"),
        (replace(FACTS, filesystem="hugetlbfs", map_refusal="mmap: no"), 0.0, "buffered", "hugetlbfs lies in memory"),
        (replace(FACTS, map_refusal="mmap: no"), 1.0, "buffered", "100% is in the page cache"),
    ],
)
def test_what_is_in_memory_stands_where_it_would_be_read_to_where_it_may(
    facts: FileFacts, resident: float | None, engine: EngineName, reason: str
) -> None:
    choice = choose(facts, resident, "", 2, may_map=True)

    assert engine == choice.engine.name
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("facts", "may_map", "says"),
    [(FACTS, False, "memory that no file can stand in"), (replace(FACTS, map_refusal="mmap: no"), True, "mmap: no")],
)
def test_a_file_that_cannot_stand_in_memory_is_refused_with_the_reason(
    facts: FileFacts, may_map: bool, says: str
) -> None:
    with pytest.raises(ResourceError, match=f"--engine mapped: model: .*{says}"):
        choose(facts, 1.0, "", 2, asked="mapped", may_map=may_map)


def test_an_empty_file_is_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with Source(tmp_path / "empty") as source:
        assert "mmap: " == (source.facts.map_refusal or "")[:6]


def test_an_engine_that_cannot_read_the_file_is_refused_with_the_reason() -> None:
    with pytest.raises(ResourceError, match="--engine io_uring: model: io_uring_setup: not permitted"):
        choose(FACTS, 0.0, "io_uring_setup: not permitted", 2, asked="io_uring")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_changed_byte_names_file_tensor_and_offset(tmp_path: Path, engine: EngineName) -> None:
    path = tmp_path / "weights"
    path.write_bytes(BYTES)
    ranges = wanted(path, (0, 5000), (5000, 2 * MIB), (2 * MIB, len(BYTES)))
    with path.open("r+b") as changing:
        changing.seek(MIB)
        changing.write(bytes([BYTES[MIB] ^ 1]))
    if engine not in ways(path):
        pytest.skip(f"{engine} cannot read files here")
    with pytest.raises(CheckpointError, match=r"weights: tensor t1 at byte 5000 has the checksum \w{16}, \w{16} was"):
        read(ranges, engine)

    assert BYTES[:5000] == read(ranges, engine, verify=False)["t0"]


def test_a_file_that_is_too_short_names_the_tensor_and_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(BYTES[:6000])
    ranges = wanted(path, (0, 5000), (5000, 7000))
    with pytest.raises(CheckpointError, match="tensor t1 cannot be read: the file ends at byte 6000, 7000 was wanted"):
        read(ranges)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("left", [0, 5 * BLOCK_BYTES, MIB + 100])
def test_a_file_that_shrinks_while_it_is_read_is_an_error_not_a_signal(
    tmp_path: Path, engine: EngineName, left: int
) -> None:
    path = tmp_path / "weights"
    path.write_bytes(BYTES)
    if engine not in ways(path):
        pytest.skip(f"{engine} cannot read files here")
    placement = place(wanted(path, (0, len(BYTES))))
    with opened(placement) as sources, Arena(placement.num_bytes, "weights") as arena:
        os.truncate(path, left)
        with pytest.raises(CheckpointError, match=f"tensor t0 cannot be read: the file ends at byte {left}, "):
            read_extents(placement, arena, sources, ReadOptions(2, engine))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="absent cannot be opened: No such file"):
        read([Range("t", tmp_path / "absent", 0, 10)])


def test_an_error_of_the_device_is_told_with_the_kernels_words(file: Path) -> None:
    """A descriptor that may not be read from stands for a device that fails, in the ring and out of it."""
    for depth in (0,) if ring_refusal() else (0, 4):
        write_only = os.open(file, os.O_WRONLY)
        with Arena(MIB, "weights") as arena:
            reading = Reading(
                [(write_only, 0, MIB, arena.address)], [], block=1, piece_bytes=4096, num_workers=2, depth=depth
            )
            while not reading.wait(1):
                pass
        os.close(write_only)

        assert reading.failure is not None
        assert "Bad file descriptor" == os.strerror(reading.failure[2])


def test_a_failure_leaves_no_descriptor_and_no_memory(file: Path) -> None:
    ranges = [replace(wanted(file, (0, len(BYTES)))[0], xxh3=1)]
    arenas: list[Arena] = []

    def arena_for(size: int) -> Arena:
        arenas.append(Arena(size, "weights"))
        return arenas[-1]

    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CheckpointError, match="has the checksum"):
        read_into_arena(ranges, arena_for, ReadOptions(2))

    assert before == len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ValueError, match="closed"):
        arenas[0]._mapping.size()


@pytest.mark.parametrize("cuts", [[], [(0, 100), (200, len(BYTES))]])
def test_what_is_done_meanwhile_is_done_once_and_after_reading_has_begun(
    file: Path, cuts: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    begin = reading_module.start_reading
    monkeypatch.setattr(reading_module, "start_reading", lambda *words: (order.append("begun"), begin(*words))[1])
    options = ReadOptions(2, meanwhile=lambda: order.append("meanwhile"))
    read_into_arena(wanted(file, *cuts), lambda size: Arena(size, "weights"), options)[0].close()

    assert [*(["begun"] if cuts else []), "meanwhile"] == order


def test_what_fails_meanwhile_ends_the_reading_and_leaves_no_descriptor(file: Path) -> None:
    def fail() -> None:
        raise CheckpointError("no tokenizer")

    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CheckpointError, match="no tokenizer"):
        read_into_arena(
            wanted(file, (0, len(BYTES))), lambda size: Arena(size, "weights"), ReadOptions(2, meanwhile=fail)
        )

    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_a_reading_that_is_cancelled_ends_and_can_be_dropped(file: Path) -> None:
    with Source(file) as source, Arena(len(BYTES), "weights") as arena:
        reading = Reading(
            [(source.buffered, 0, len(BYTES), arena.address)], [], block=1, piece_bytes=1, num_workers=1, depth=0
        )
        reading.cancel()

        assert reading.wait(0)
        assert reading.bytes_read <= len(BYTES)


@pytest.mark.parametrize(
    ("extents", "spans", "message"),
    [
        ([(0, 1, 10, 4096)], [], "do not lie in memory"),
        ([(0, 0, 0, 4096)], [], "0 bytes at 0"),
        ([(0, 0, 10, 4096)], [(0, 5, 6)], "spans"),
        ([(0, 0, 10, 4096)], [(0, 5, 5), (0, 4, 1)], "spans"),
        ([(0, 0, 10, 4096)], [(1, 0, 5)], "spans"),
    ],
)
def test_ranges_that_cannot_be_are_refused(
    extents: list[tuple[int, int, int, int]], spans: list[tuple[int, int, int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Reading(extents, spans, block=4096, piece_bytes=4096, num_workers=1, depth=0)
