"""The ring of pinned buffers: what arrives on a device that the host cannot touch, in which order, and what fails."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from trivet.base.errors import CheckpointError, ResourceError
from trivet.driver.devices.null import NullCopy, NullMemory
from trivet.framework.model.loading import extents as placing
from trivet.framework.model.loading.engines import ENGINES
from trivet.framework.model.loading.extents import Range
from trivet.framework.model.loading.read import ReadOptions
from trivet.framework.model.loading.staging import read_to_device

BYTES = np.random.default_rng(1).bytes(300_000)
BUFFER = 32768


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("staging") / "weights"
    path.write_bytes(BYTES)
    return path


def wanted(file: Path, cuts: list[int]) -> list[Range]:
    bounds = zip(cuts[::2], cuts[1::2], strict=False)
    return [
        Range(f"t{i}", file, a, b - a, xxhash.xxh3_64_intdigest(BYTES[a:b])) for i, (a, b) in enumerate(bounds) if b > a
    ]


@given(
    cuts=st.lists(st.integers(0, len(BYTES)), min_size=2, max_size=10).map(sorted),
    num_buffers=st.integers(1, 3),
    buffer_bytes=st.sampled_from([4096, BUFFER, 1 << 20]),
    engine=st.sampled_from([None, *ENGINES]),
)
def test_any_ranges_arrive_whole_through_any_ring(
    file: Path, cuts: list[int], num_buffers: int, buffer_bytes: int, engine: str | None
) -> None:
    ranges = wanted(file, cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "_GAP_BYTES", 4096)
        try:
            memory, places, report = read_to_device(
                ranges, NullMemory, ReadOptions(2, engine), buffer_bytes=buffer_bytes, num_buffers=num_buffers
            )
        except ResourceError as refused:
            pytest.skip(str(refused))
    for r in ranges:
        assert BYTES[r.offset : r.offset + r.num_bytes] == memory.read(places[r.name], r.num_bytes)
    memory.close()
    assert sum(r.num_bytes for r in ranges) == report.verified


def test_copies_begin_in_the_order_of_the_memory_and_no_buffer_is_written_before_its_copy_is_done(file: Path) -> None:
    seen: list[tuple[int, int]] = []
    held = b""

    def hold(copy: NullCopy) -> None:
        nonlocal held
        before = ctypes.string_at(copy.source, copy.num_bytes)
        threading.Event().wait(0.005)  # long enough for a read that did not wait to overwrite the buffer
        held = ctypes.string_at(copy.source, copy.num_bytes)
        seen.append((copy.source, copy.to))
        assert before == held

    ranges = wanted(file, [0, len(BYTES)])
    memory, _, _ = read_to_device(
        ranges, lambda size: NullMemory(size, hold), ReadOptions(2), buffer_bytes=BUFFER, num_buffers=2
    )

    assert BYTES == memory.read(0, len(BYTES))
    assert sorted(to for _, to in seen) == [to for _, to in seen]
    assert 2 == len({source for source, _ in seen})
    assert all(one[0] != other[0] for one, other in pairwise(seen))
    memory.close()


def test_the_next_window_is_read_while_one_is_copied(file: Path) -> None:
    """The first copy is held until the second buffer is full: without overlap that would never be."""
    progressed = threading.Event()

    def told(done: int, total: int) -> None:
        if done >= 2 * BUFFER:
            progressed.set()

    def hold(copy: NullCopy) -> None:
        if copy.to == 0 and not progressed.wait(20):
            raise OSError(5, "nothing was read beside the first copy")

    memory, _, report = read_to_device(
        wanted(file, [0, len(BYTES)]),
        lambda size: NullMemory(size, hold),
        ReadOptions(2, progress=told),
        buffer_bytes=BUFFER,
        num_buffers=2,
    )

    assert BYTES == memory.read(0, len(BYTES))
    assert len(report.extents) == -(-len(BYTES) // BUFFER)
    memory.close()


@pytest.mark.parametrize("at", [0, 3, -(-len(BYTES) // BUFFER) - 1])
def test_a_copy_that_fails_in_mid_flight_is_told_and_leaves_nothing(file: Path, at: int) -> None:
    copies: list[NullCopy] = []

    def fail(copy: NullCopy) -> None:
        copies.append(copy)
        if copy.to == at * BUFFER:
            raise OSError(5, "link error")

    before, threads = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    with pytest.raises(ResourceError, match=r"device null: a copy of \d+ bytes failed: link error"):
        read_to_device(
            wanted(file, [0, len(BYTES)]), lambda size: NullMemory(size, fail), ReadOptions(2), buffer_bytes=BUFFER
        )

    assert len(copies) > at
    assert before == len(list(Path("/proc/self/fd").iterdir()))
    assert threads == threading.active_count()


def test_a_changed_byte_is_found_before_its_window_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    changed = bytearray(BYTES)
    changed[100_000] ^= 1
    path.write_bytes(changed)
    copies: list[int] = []
    with pytest.raises(CheckpointError, match=r"tensor t1 at byte 50000 has the checksum"):
        read_to_device(
            wanted(path, [0, 50_000, 50_000, 120_000, 120_000, len(BYTES)]),
            lambda size: NullMemory(size, lambda copy: copies.append(copy.to)),
            ReadOptions(2),
            buffer_bytes=BUFFER,
        )

    assert [0, BUFFER, 2 * BUFFER] == copies


@pytest.mark.parametrize("touch", ["write", "read", "past the end", "before the start"])
def test_host_code_that_touches_the_device_dies(touch: str) -> None:
    memory = NullMemory(8192)
    address = memory.address + {"past the end": 8192, "before the start": -1}.get(touch, 0)
    act: Callable[[], object] = lambda: ctypes.string_at(address, 1)  # noqa: E731
    if touch == "write":
        act = lambda: ctypes.memset(address, 1, 1)  # noqa: E731
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        act()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    memory.close()

    assert signal.SIGSEGV == os.WTERMSIG(status)


def test_more_memory_than_there_is_is_refused() -> None:
    with pytest.raises(ResourceError, match="device null"):
        NullMemory(1 << 62)
