"""Ranges come in windows, each byte once and as it is in its file; no more than two windows are in memory."""

import threading
import weakref
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivet.base.errors import CheckpointError
from trivet.framework.memory.arena import Arena
from trivet.framework.model.loading import stream as streaming
from trivet.framework.model.loading.extents import Range
from trivet.framework.model.loading.read import ReadOptions
from trivet.framework.model.loading.stream import Stream

BYTES = np.random.default_rng(0).bytes(100_003)
OPTIONS = ReadOptions(2, "buffered")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("weights")
    made = folder / "a", folder / "b"
    for file in made:
        file.write_bytes(BYTES)
    return made


def ranges_of(file: Path, bounds: list[int]) -> list[Range]:
    return [Range(f"{file.name}{i}", file, a, b - a) for i, (a, b) in enumerate(pairwise(bounds))]


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("trivet-read")}


bounds = st.lists(st.integers(0, len(BYTES)), min_size=2, max_size=12).map(sorted)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(first=bounds, second=bounds, window_bytes=st.integers(1, 2 * len(BYTES)), order=st.randoms())
def test_every_range_comes_once_and_as_it_is_in_its_file(files, first, second, window_bytes, order):
    ranges = [*ranges_of(files[0], first), *ranges_of(files[1], second)]
    order.shuffle(ranges)
    stream = Stream(ranges, OPTIONS, window_bytes)
    got = [(name, data.tobytes()) for name, data in stream]

    assert {each.name: BYTES[each.offset : each.offset + each.num_bytes] for each in ranges} == dict(got)
    assert len(ranges) == len(got)
    assert sum(each.num_bytes for each in ranges) <= stream.report.num_bytes  # small gaps are read, too


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many windows were in memory when each began."""
    arenas: weakref.WeakSet[Arena] = weakref.WeakSet()
    counts: list[int] = []

    class Counted(Arena):
        def __init__(self, num_bytes: int, name: str) -> None:
            super().__init__(num_bytes, name)
            arenas.add(self)
            counts.append(len(arenas))

    monkeypatch.setattr(streaming, "Arena", Counted)
    return counts


def test_two_windows_are_in_memory_and_no_more(files, alive):
    for _ in Stream(ranges_of(files[0], list(range(0, 100_000, 10_000))), OPTIONS, 10_000):
        pass

    assert [1, *[2] * 8] == alive


def test_bytes_that_are_kept_outlive_their_window(files):
    kept = dict(Stream(ranges_of(files[0], [0, 50_000, 100_000]), OPTIONS, 1))

    assert BYTES[:50_000] == kept["a0"].tobytes()


def test_a_file_that_ends_early_is_an_error_and_leaves_no_thread(files, tmp_path):
    short = tmp_path / "short"
    short.write_bytes(BYTES[:10])
    with pytest.raises(CheckpointError, match="tensor short0 cannot be read: the file ends at byte 10"):
        list(Stream([*ranges_of(files[0], [0, 99]), *ranges_of(short, [0, 99])], OPTIONS, 99))

    assert set() == names()


def test_one_who_stops_early_leaves_no_thread(files):
    taken = iter(Stream(ranges_of(files[0], [0, 40_000, 80_000]), OPTIONS, 1))
    next(taken)

    assert 1 == len(names())
    taken.close()
    assert set() == names()


def test_a_model_without_weights_is_read_in_no_time():
    assert [] == list(Stream([], OPTIONS))
