"""Files stand in for memory and are taken in while others read; one that is cut or changed meanwhile is told."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from trivet.base.errors import CheckpointError
from trivet.base.units import MIB
from trivet.framework.memory.arena import Arena
from trivet.framework.memory.mapped import check_files
from trivet.framework.model.loading import extents as placing
from trivet.framework.model.loading.extents import Range
from trivet.framework.model.loading.read import ReadOptions, read_into_arena
from trivet.framework.model.loading.source import Source

BYTES = np.random.default_rng(1).bytes(7 * MIB + 17)
MAPPED = ReadOptions(2, "mapped")


def written(folder: Path, data: bytes = BYTES) -> Path:
    path = folder / "weights"
    path.write_bytes(data)
    return path


def of(path: Path, *bounds: tuple[int, int]) -> list[Range]:
    return [
        Range(f"t{i}", path, a, b - a, int(xxhash.xxh3_64_intdigest(BYTES[a:b]))) for i, (a, b) in enumerate(bounds)
    ]


@contextmanager
def mapped(ranges: list[Range], options: ReadOptions = MAPPED) -> Iterator[tuple[Arena, dict[str, int]]]:
    arena, places, _ = read_into_arena(ranges, lambda size: Arena(size, "weights"), options)
    with arena:
        yield arena, places


def found(arena: Arena, places: dict[str, int], ranges: list[Range]) -> list[bytes]:
    return [arena.view(places[r.name], (r.num_bytes,), np.uint8).tobytes() for r in ranges]


def mapped_bytes(path: Path) -> int:
    """How much of the file this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    bounds = (line.split()[0].split("-") for line in lines if str(path) in line)
    return sum(int(end, 16) - int(begin, 16) for begin, end in bounds)


@given(
    cuts=st.lists(st.integers(0, len(BYTES)), min_size=2, max_size=8, unique=True).map(sorted),
    gap=st.sampled_from([0, 4096, 1 << 20]),
)
def test_what_is_taken_in_is_what_the_file_had_wherever_it_was_cut_and_no_file_is_left(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], gap: int
) -> None:
    path = written(tmp_path_factory.getbasetemp())
    ranges = of(path, *zip(cuts[::2], cuts[1::2], strict=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "_GAP_BYTES", gap)
        with mapped(ranges) as (arena, places):
            before = found(arena, places, ranges)
            assert mapped_bytes(path) > 0
            arena.take_in()
            arena.settle()

            assert mapped_bytes(path) == 0
            path.write_bytes(b"")
            assert [BYTES[r.offset : r.offset + r.num_bytes] for r in ranges] == before == found(arena, places, ranges)
            check_files()


@given(resident=st.lists(st.sampled_from([0.0, 0.6, 1.0]), min_size=7, max_size=7), gap=st.sampled_from([0, 1 << 20]))
def test_a_file_of_which_a_part_is_in_the_page_cache_comes_whole_by_as_many_ways(
    tmp_path_factory: pytest.TempPathFactory, resident: list[float], gap: int
) -> None:
    path = written(tmp_path_factory.getbasetemp())
    ranges = of(path, *((i * MIB + 10, (i + 1) * MIB + 10 - i * gap // 16) for i in range(7)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "_EXTENT_BYTES", MIB)
        patch.setattr(Source, "resident_share", lambda source, offset, size: resident[offset // MIB])
        with mapped(ranges, ReadOptions(2)) as (arena, places):
            before = found(arena, places, ranges)
            arena.take_in()
            arena.settle()

            assert [BYTES[r.offset : r.offset + r.num_bytes] for r in ranges] == before == found(arena, places, ranges)
            check_files()


def test_whoever_reads_while_a_file_is_taken_in_finds_its_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, BYTES * 8)
    whole = Range("t", path, 0, len(BYTES) * 8)
    wanted = xxhash.xxh3_64_intdigest(BYTES * 8)
    for _ in range(5):
        with mapped([whole]) as (arena, places):
            view, digests, is_over = arena.view(places["t"], (whole.num_bytes,), np.uint8), set(), threading.Event()

            def look(view: np.ndarray, digests: set[int], is_over: threading.Event) -> None:
                while not is_over.is_set():
                    digests.add(xxhash.xxh3_64_intdigest(view))

            reader = threading.Thread(target=look, args=(view, digests, is_over))
            reader.start()
            arena.take_in()
            arena.settle()
            is_over.set()
            reader.join()
            digests.add(xxhash.xxh3_64_intdigest(view))
            del view

            assert {wanted} == digests


def cut(path: Path) -> None:
    os.truncate(path, 3 * MIB)


def change(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(6 * MIB)
        file.write(bytes([BYTES[6 * MIB] ^ 1]))


@pytest.mark.parametrize(
    ("damage", "says"),
    [(cut, r"weights was cut before byte \d+ while"), (change, f"weights was changed after byte {5 * MIB} while")],
)
def test_a_file_that_is_damaged_before_it_is_taken_in_is_told_and_ends_nothing(
    tmp_path: Path, damage: Callable[[Path], None], says: str
) -> None:
    path = written(tmp_path)
    with mapped(of(path, (0, 5 * MIB), (5 * MIB, len(BYTES)))) as (arena, _):
        damage(path)
        arena.take_in()
        arena.settle()

        with pytest.raises(CheckpointError, match=says):
            check_files()
    check_files()  # it is told as long as the file stands in memory


def test_a_file_that_is_cut_reads_as_zeros_by_whoever_comes_first(tmp_path: Path) -> None:
    path = written(tmp_path)
    with mapped(of(path, (0, len(BYTES)))) as (arena, places):
        cut(path)
        left = arena.view(places["t0"], (len(BYTES),), np.uint8).tobytes()

        assert BYTES[: 3 * MIB] == left[: 3 * MIB]
        assert bytes(4 * MIB) == left[3 * MIB : 7 * MIB]
        with pytest.raises(CheckpointError, match="weights was cut before byte"):
            check_files()


def test_views_keep_what_stands_in_memory(tmp_path: Path) -> None:
    path = written(tmp_path)
    arena, places, _ = read_into_arena(of(path, (0, len(BYTES))), lambda size: Arena(size, "weights"), MAPPED)
    view = arena.view(places["t0"], (len(BYTES),), np.uint8)
    del arena
    cut(path)

    assert bytes(MIB) == view[6 * MIB : 7 * MIB].tobytes()
    del view
    assert mapped_bytes(path) == 0
    check_files()


def test_an_arena_may_go_while_it_takes_in(tmp_path: Path) -> None:
    path = written(tmp_path, BYTES * 8)
    for _ in range(5):
        with mapped([Range("t", path, 0, len(BYTES) * 8)]) as (arena, _):
            arena.take_in()
        assert mapped_bytes(path) == 0


def test_another_files_signal_still_ends_the_process(tmp_path: Path) -> None:
    """A guard stands for its own addresses alone."""
    path = written(tmp_path)
    program = f"""
import mmap, os
from pathlib import Path
from trivet.framework.memory.arena import Arena
from trivet.framework.model.loading.extents import Range
from trivet.framework.model.loading.read import ReadOptions, read_into_arena
from trivet.framework.model.loading.source import Source
path = Path({str(path)!r})
arena, _, _ = read_into_arena([Range("t", path, 0, 1 << 20)], lambda size: Arena(size, "w"), ReadOptions(1, "mapped"))
with path.open("rb") as file:
    other = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
os.truncate(path, 1 << 20)
other[5 << 20]
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)

    assert -signal.SIGBUS == ended.returncode, ended.stderr.decode()
