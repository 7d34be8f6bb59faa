import os
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.base.errors import ResourceError
from trivet.framework.memory import file_tier
from trivet.framework.memory.block import HEADER_BYTES, BlockError, Header, checksums, decode
from trivet.framework.memory.chain import Chain, Identity, Link
from trivet.framework.memory.file_tier import FileTier

IDENTITY = Identity(b"m" * 32, b"l" * 32)
BLOCK_BYTES = 8192
PIECES = (slice(0, 100), slice(100, 5000), slice(5000, BLOCK_BYTES))
FILE_BYTES = HEADER_BYTES + BLOCK_BYTES


def link(number: int, salt: str = "", identity: Identity = IDENTITY) -> Link:
    return Chain(identity, salt).extend(array("i", [number]), 1, 1)[0]


def payload(number: int):
    return np.random.default_rng(number).integers(0, 256, BLOCK_BYTES, np.uint8)


def opened(folder: Path, num_blocks: int = 8) -> FileTier:
    return FileTier(folder, num_blocks * FILE_BYTES, IDENTITY, PIECES)


def publish(tier: FileTier, *numbers: int) -> None:
    tier.publish([(link(number), payload(number), checksums(payload(number), PIECES)) for number in numbers])


def read(tier: FileTier, number: int):
    into = np.empty(BLOCK_BYTES, np.uint8)
    return None if tier.read(link(number), into) is None else into


def file_of(folder: Path, number: int) -> Path:
    (found,) = folder.glob(f"blocks/{link(number).name.hex()}.*")
    return found


def test_a_block_is_read_back_after_a_restart(tmp_path):
    tier = opened(tmp_path)
    publish(tier, 1, 2)
    tier.close()
    again = opened(tmp_path)

    assert np.array_equal(payload(2), read(again, 2))
    assert 2 * FILE_BYTES == again.used_bytes
    assert read(again, 3) is None


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    tier = opened(tmp_path_factory.mktemp("stored"))
    publish(tier, 1)
    return tier, file_of(tier._folder, 1)


@given(offset=st.integers(0, FILE_BYTES - 1), flipped=st.integers(1, 255))
def test_a_changed_byte_anywhere_is_a_miss_and_is_put_in_quarantine(stored, offset, flipped):
    tier, path = stored
    before = tier.counts.corrupt
    whole = path.read_bytes()
    path.write_bytes(whole[:offset] + bytes([whole[offset] ^ flipped]) + whole[offset + 1 :])

    assert read(tier, 1) is None
    assert before + 1 == tier.counts.corrupt
    assert not path.exists() and not tier.holds(link(1))
    assert (path.parents[1] / "quarantine" / path.name).exists()

    publish(tier, 1)  # computed again, it is good again

    assert np.array_equal(payload(1), read(tier, 1))


@given(size=st.integers(0, 2 * FILE_BYTES).filter(lambda size: size != FILE_BYTES))
def test_a_block_of_another_size_is_a_miss(stored, size):
    tier, path = stored
    path.write_bytes(path.read_bytes()[:size].ljust(size, b"\0"))

    assert read(tier, 1) is None

    publish(tier, 1)


@pytest.mark.parametrize("other", [link(2), link(1, salt="a tenant"), link(1, identity=Identity(b"n" * 32, b"l" * 32)),
                                   link(1, identity=Identity(b"m" * 32, b"k" * 32))])  # fmt: skip
def test_a_whole_block_under_the_name_of_another_is_a_miss(tmp_path, other):
    tier = opened(tmp_path)
    publish(tier, 1)
    path = file_of(tmp_path, 1)
    path.rename(path.with_name(path.name.replace(link(1).name.hex(), other.name.hex())))

    assert tier.read(other, np.empty(BLOCK_BYTES, np.uint8)) is None
    assert 1 == tier.counts.corrupt


def test_a_header_says_all_that_its_block_is():
    header = Header(link(1, "tenant"), IDENTITY, (100, BLOCK_BYTES - 100), (7, 8))

    assert header == decode(header.encode())
    with pytest.raises(BlockError, match="checksum"):
        decode(bytes(HEADER_BYTES))


@given(st.lists(st.tuples(st.sampled_from(["publish", "read"]), st.integers(0, 9)), max_size=30), st.integers(1, 4))
def test_the_budget_holds_in_physical_bytes_and_what_was_used_last_stays(tmp_path_factory, acts, num_blocks):
    folder = tmp_path_factory.mktemp("budget")
    tier = opened(folder, num_blocks)
    newest = None
    for act, number in acts:
        if act == "publish":
            is_new = not tier.holds(link(number))
            publish(tier, number)
            newest = number if is_new else newest
        else:
            read(tier, number)
        on_disk = sum(path.stat().st_blocks * 512 for path in folder.glob("*/*.kv*"))
        assert on_disk == tier.used_bytes <= num_blocks * FILE_BYTES
        assert newest is None or tier.holds(link(newest))
    tier.close()


def test_a_block_that_is_read_outlives_one_that_is_not(tmp_path):
    tier = opened(tmp_path, num_blocks=2)
    publish(tier, 1)
    publish(tier, 2)
    os.utime(file_of(tmp_path, 2), (1, 1))
    tier.close()
    tier = opened(tmp_path, num_blocks=2)
    read(tier, 1)
    publish(tier, 3)

    assert [True, False, True] == [tier.holds(link(number)) for number in (1, 2, 3)]


def test_one_process_writes_and_others_read_until_they_can_take_over(tmp_path):
    writer = opened(tmp_path)
    publish(writer, 1)
    reader = opened(tmp_path)
    publish(reader, 2)

    assert np.array_equal(payload(1), read(reader, 1))
    assert not reader.is_writer and not reader.holds(link(2))

    writer.close()
    publish(reader, 2)

    assert reader.is_writer and reader.holds(link(2))
    assert 2 * FILE_BYTES == reader.used_bytes


def test_a_reader_that_finds_a_bad_block_never_asks_for_it_again_and_leaves_it_to_the_writer(tmp_path):
    writer = opened(tmp_path)
    publish(writer, 1)
    reader = opened(tmp_path)
    path = file_of(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-1] + b"?")

    assert read(reader, 1) is None
    assert path.exists() and not reader.holds(link(1)) and writer.holds(link(1))

    while writer.scrub_next() or path.exists():
        pass

    assert 1 == writer.counts.corrupt


def test_scrubbing_reads_every_block_and_quarantines_the_damaged(tmp_path):
    tier = opened(tmp_path)
    publish(tier, 1, 2, 3)
    path = file_of(tmp_path, 2)
    path.write_bytes(path.read_bytes()[:-1])
    assert not tier.scrub_next()  # a round begins

    while tier.scrub_next():
        pass

    assert (2, 1) == (tier.counts.scrubbed, tier.counts.corrupt)
    assert [True, False, True] == [tier.holds(link(number)) for number in (1, 2, 3)]


def test_bytes_are_on_disk_before_the_name_and_names_before_publish_returns(tmp_path, monkeypatch):
    tier = opened(tmp_path)
    events = []
    fsync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda file: events.append(Path(f"/proc/self/fd/{file}").readlink().name)
                        or fsync(file))  # fmt: skip
    monkeypatch.setattr(Path, "rename", lambda self, to: events.append(f"rename {self.name}") or rename(self, to))
    publish(tier, 1, 2)
    names = [file_of(tmp_path, number).name for number in (1, 2)]

    assert [*names, *(f"rename {name}" for name in names), "blocks"] == events


def test_a_full_disk_costs_the_block_and_leaves_nothing_behind(tmp_path, monkeypatch, caplog):
    tier = opened(tmp_path)
    monkeypatch.setattr(file_tier.os, "fsync", lambda file: os.write(-1, b""))  # EBADF stands for any error of a disk
    publish(tier, 1)
    monkeypatch.undo()

    assert 1 == tier.counts.failures
    assert 0 == tier.used_bytes
    assert [] == list((tmp_path / "partial").iterdir())
    assert "event=kv_file_failed act=write" in caplog.text
    publish(tier, 1)
    assert np.array_equal(payload(1), read(tier, 1))


def test_what_a_killed_writer_left_goes_when_the_next_one_begins(tmp_path):
    opened(tmp_path).close()
    (tmp_path / "partial" / "half").write_bytes(b"half a block")
    opened(tmp_path)

    assert [] == list((tmp_path / "partial").iterdir())


def test_a_folder_that_cannot_be_used_or_holds_no_block_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot be used"):
        opened(tmp_path / "file" / "kv")
    opened(tmp_path / "kv").close()
    (tmp_path / "kv" / "partial" / "a folder").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ResourceError, match="cannot be used: Is a directory"):
        opened(tmp_path / "kv")
    assert before == len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ResourceError, match=r"--kv-dir-bytes is 12\.0 KiB, one block of this model is 12\.0 KiB"):
        FileTier(tmp_path, FILE_BYTES - 1, IDENTITY, PIECES)


def test_a_pinned_block_outlives_all_others_and_pins_leave_half_of_the_budget(tmp_path):
    tier = opened(tmp_path, num_blocks=4)
    tier.pin([link(1), link(2), link(3)])
    publish(tier, 1, 2, 3)
    for number in range(10, 20):
        publish(tier, number)

    assert [True, True, False] == [tier.holds(link(number)) for number in (1, 2, 3)]
    assert tier.holds(link(19))
    assert 4 * FILE_BYTES >= tier.used_bytes
