"""One rank reads and the others receive: what each has in the end, and how a failure in one ends all."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from trivet.base.errors import CheckpointError, ResourceError, TrivetError
from trivet.driver.devices.null import NullCopy, NullMemory
from trivet.framework.memory.host_memory import HostMemory
from trivet.framework.model.loading.broadcast import read_together
from trivet.framework.model.loading.extents import Range
from trivet.framework.model.loading.read import ReadOptions, ReadReport

BYTES = np.random.default_rng(3).bytes(150_000)
BUFFER = 8192
Loaded = tuple[dict[str, bytes], ReadReport]


class Threads:
    """Ranks as threads of one process: the promises of a group, kept by a barrier."""

    def __init__(self, num_ranks: int) -> None:
        self.barrier = threading.Barrier(num_ranks, timeout=30)
        self.failures: dict[int, str] = {}
        self.source = 0


class Rank:
    """`spoil` is called with the address of what has come here."""

    def __init__(self, rank: int, num_ranks: int, all_ranks: Threads, spoil: Callable[[int], None]) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self._all, self._spoil, self._is_over = all_ranks, spoil, False

    def broadcast(self, address: int, num_bytes: int) -> None:
        if self.rank == 0:
            self._all.source = address
        self._all.barrier.wait()
        if self.rank > 0:
            ctypes.memmove(address, self._all.source, num_bytes)
            self._spoil(address)
        self._all.barrier.wait()

    def agree(self, failure: TrivetError | None = None) -> None:
        if failure is not None:
            self._all.failures[self.rank] = failure.message
        self._all.barrier.wait()
        if self._all.failures:
            self._is_over = True
            first = min(self._all.failures)
            raise ResourceError(f"rank {first}: {self._all.failures[first]}")
        self._all.barrier.wait()

    def close(self) -> None:
        self._is_over = True

    def tell(self, failure: TrivetError) -> None:
        if not self._is_over:
            with pytest.raises(ResourceError):
                self.agree(failure)


def together(
    ranges: list[Range],
    num_ranks: int,
    memory_for: Callable[[int, int], Any] = lambda rank, size: HostMemory(size),
    spoil: Callable[[int, int], None] = lambda rank, address: None,
    num_buffers: int = 2,
) -> list[Loaded | TrivetError]:
    """What each rank has, or what it raised."""
    all_ranks = Threads(num_ranks)

    def load(rank: int) -> Loaded | TrivetError:
        group = Rank(rank, num_ranks, all_ranks, lambda address: spoil(rank, address))
        try:
            memory, places, report = read_together(
                ranges,
                lambda size: memory_for(rank, size),
                ReadOptions(2, "buffered"),
                group,
                buffer_bytes=BUFFER,
                num_buffers=num_buffers,
            )
        except TrivetError as error:
            return error
        at = memory.address if isinstance(memory, NullMemory) else memory.arena.address
        read = memory.read if isinstance(memory, NullMemory) else lambda to, size: ctypes.string_at(at + to, size)
        found = {each.name: read(places[each.name], each.num_bytes) for each in ranges}
        memory.close()
        return found, report

    with ThreadPoolExecutor(num_ranks) as threads:
        return list(threads.map(load, range(num_ranks)))


def wanted(file: Path, cuts: list[int]) -> list[Range]:
    bounds = enumerate(zip(cuts[::2], cuts[1::2], strict=False))
    return [Range(f"t{i}", file, a, b - a, xxhash.xxh3_64_intdigest(BYTES[a:b])) for i, (a, b) in bounds if b > a]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("broadcast") / "weights"
    path.write_bytes(BYTES)
    return path


@settings(max_examples=30, deadline=None)
@given(
    cuts=st.lists(st.integers(0, len(BYTES)), min_size=2, max_size=8).map(sorted),
    num_ranks=st.integers(2, 4),
    num_buffers=st.integers(1, 3),
    kind=st.sampled_from([HostMemory, NullMemory]),
)
def test_every_rank_has_every_range_and_only_one_reads(
    file: Path, cuts: list[int], num_ranks: int, num_buffers: int, kind: Callable[[int], Any]
) -> None:
    ranges = wanted(file, cuts)
    size = sum(each.num_bytes for each in ranges)
    for rank, loaded in enumerate(together(ranges, num_ranks, lambda rank, size: kind(size), num_buffers=num_buffers)):
        assert isinstance(loaded, tuple), loaded
        found, report = loaded

        assert {each.name: BYTES[each.offset : each.offset + each.num_bytes] for each in ranges} == found
        assert size == report.verified
        assert (rank == 0, rank > 0) == (report.num_bytes >= size > 0, report.received_bytes >= size > 0) or not ranges


def test_bytes_that_change_on_the_way_end_all_ranks_with_the_receivers_sentence(file: Path) -> None:
    def spoil(rank: int, address: int) -> None:
        if rank == 1:
            ctypes.memset(address, 0, 1)

    reader, spoiled, other = together(wanted(file, [0, 50_000, 50_000, 150_000]), 3, spoil=spoil)

    assert isinstance(spoiled, CheckpointError)
    assert "tensor t0 at byte 0 has the checksum" in spoiled.message
    for each in (reader, other):
        assert isinstance(each, ResourceError)
        assert f"rank 1: {spoiled.message}" == each.message


def test_a_changed_file_ends_all_ranks_before_its_window_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(BYTES[:100_000] + b"x" + BYTES[100_001:])
    reader, *others = together(wanted(path, [0, 50_000, 50_000, 150_000]), 3)

    assert isinstance(reader, CheckpointError)
    assert "tensor t1 at byte 50000 has the checksum" in reader.message
    for each in others:
        assert isinstance(each, ResourceError)
        assert f"rank 0: {reader.message}" == each.message


def test_a_file_that_only_the_reader_misses_ends_all_ranks(tmp_path: Path) -> None:
    reader, other = together(wanted(tmp_path / "absent", [0, 50_000]), 2)

    assert isinstance(reader, CheckpointError)
    assert isinstance(other, ResourceError)
    assert f"rank 0: {reader.message}" == other.message


@pytest.mark.parametrize("failing", [0, 2])
def test_a_copy_to_one_device_that_fails_ends_all_ranks(file: Path, failing: int) -> None:
    def hold(copy: NullCopy) -> None:
        if copy.to == 4 * BUFFER:
            raise OSError(5, "link error")

    def memory_for(rank: int, size: int) -> NullMemory:
        return NullMemory(size, hold) if rank == failing else NullMemory(size)

    for each in together(wanted(file, [0, 150_000]), 3, memory_for):
        assert isinstance(each, ResourceError)
        assert "failed: link error" in each.message


def test_a_rank_without_the_memory_ends_all(file: Path) -> None:
    def memory_for(rank: int, size: int) -> NullMemory:
        return NullMemory(1 << 62 if rank == 1 else size)

    for each in together(wanted(file, [0, 150_000]), 2, memory_for):
        assert isinstance(each, ResourceError)
        assert "device null: " in each.message
