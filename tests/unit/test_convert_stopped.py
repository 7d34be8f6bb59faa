"""Conversions that are stopped, disturbed or in each other's way: what is left, and what the next one makes of it."""

import errno
import fcntl
import multiprocessing
import os
import shutil

import pytest
from conversions import SIX_SHARDS, after, contents, interrupt
from small_model import TINY

from trivet.base.errors import CheckpointError, ResourceError
from trivet.framework.model.convert import convert
from trivet.framework.model.steps import Wanted
from trivet.framework.model.work_folder import work_folder, work_path


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_keeps_whole_shards_for_the_next_call_which_gives_the_same_bytes(tmp_path, error):
    def fail():
        raise error

    convert(TINY / "llama", tmp_path / "wanted", SIX_SHARDS)
    with pytest.raises(error):
        convert(TINY / "llama", tmp_path / "package", SIX_SHARDS, progress=after(250_000, fail))
    left = sorted(str(path.relative_to(tmp_path)) for path in work_path(tmp_path / "package").rglob("*.*"))
    inodes = {path.name: path.stat().st_ino for path in (work_path(tmp_path / "package") / "package").iterdir()}
    converted = convert(TINY / "llama", tmp_path / "package", SIX_SHARDS)

    assert [f"package.partial/package/model-0000{i}-of-00006.safetensors" for i in (1, 2, 3)] == left
    assert inodes == {name: (tmp_path / "package" / name).stat().st_ino for name in inodes}
    assert "28 weights, 418.3 KiB, 3 shards were there" == converted.steps[5].made
    assert contents(tmp_path / "wanted") == contents(tmp_path / "package")
    assert not work_path(tmp_path / "package").exists()


def test_an_interrupt_before_the_first_whole_shard_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        convert(TINY / "llama", tmp_path / "package", progress=after(1, interrupt))

    assert [] == list(tmp_path.iterdir())


def test_what_was_left_for_other_settings_or_another_source_is_not_used(tmp_path):
    for name in ("llama", "qwen3"):
        convert(TINY / name, tmp_path / name, SIX_SHARDS)
    wide = Wanted("float32", shard_bytes=100_000)
    convert(TINY / "llama", tmp_path / "wide", wide)
    for name, source, wanted in (("qwen3", "qwen3", SIX_SHARDS), ("wide", "llama", wide)):
        with pytest.raises(KeyboardInterrupt):
            convert(TINY / "llama", tmp_path / "package", SIX_SHARDS, progress=after(250_000, interrupt))
        convert(TINY / source, tmp_path / "package", wanted)

        assert contents(tmp_path / name) == contents(tmp_path / "package")
        shutil.rmtree(tmp_path / "package")


def test_a_shard_that_shrank_in_the_work_folder_is_written_again(tmp_path):
    convert(TINY / "llama", tmp_path / "wanted", SIX_SHARDS)
    with pytest.raises(KeyboardInterrupt):
        convert(TINY / "llama", tmp_path / "package", SIX_SHARDS, progress=after(250_000, interrupt))
    shard = work_path(tmp_path / "package") / "package" / "model-00001-of-00006.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    convert(TINY / "llama", tmp_path / "package", SIX_SHARDS)

    assert contents(tmp_path / "wanted") == contents(tmp_path / "package")


def test_a_byte_that_changed_in_the_work_folder_is_found_and_nothing_appears(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        convert(TINY / "llama", tmp_path / "package", SIX_SHARDS, progress=after(250_000, interrupt))
    shard = work_path(tmp_path / "package") / "package" / "model-00001-of-00006.safetensors"
    content = bytearray(shard.read_bytes())
    content[content[0] + 256 * content[1] + 8] ^= 1  # the first byte after the header
    shard.write_bytes(content)

    with pytest.raises(CheckpointError, match=r"tensor rope\.frequencies at byte \d+ has the checksum"):
        convert(TINY / "llama", tmp_path / "package", SIX_SHARDS)
    assert [] == list(tmp_path.iterdir())


def test_an_interrupted_replacement_leaves_the_old_package(tmp_path):
    convert(TINY / "llama", tmp_path / "package")
    before = contents(tmp_path / "package")
    with pytest.raises(KeyboardInterrupt):
        convert(TINY / "qwen3", tmp_path / "package", SIX_SHARDS, replace=True, progress=after(250_000, interrupt))

    assert before == contents(tmp_path / "package")


def test_a_journal_that_is_damaged_counts_up_to_the_damage(tmp_path):
    convert(TINY / "llama", tmp_path / "wanted", SIX_SHARDS)
    for damage in (b"\xff\n", b"[3]\n", b'["plan"', b"null\n"):
        with pytest.raises(KeyboardInterrupt):
            convert(TINY / "llama", tmp_path / "package", SIX_SHARDS, progress=after(250_000, interrupt))
        journal = work_path(tmp_path / "package") / "journal"
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:6]) + damage)
        made = convert(TINY / "llama", tmp_path / "package", SIX_SHARDS, replace=True).steps[5].made

        assert "28 weights, 418.3 KiB, 1 shards were there" == made
        assert contents(tmp_path / "wanted") == contents(tmp_path / "package")
        shutil.rmtree(tmp_path / "package")


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the disk is full"), (errno.EIO, "error")],
)
def test_storage_that_fails_meanwhile_is_an_error_of_ours_and_the_next_call_goes_on(tmp_path, number, message):
    def fail():
        raise OSError(number, os.strerror(number))

    convert(TINY / "llama", tmp_path / "wanted", SIX_SHARDS)
    with pytest.raises(ResourceError, match=f"{message}(.|\n)*same command again"):
        convert(TINY / "llama", tmp_path / "package", SIX_SHARDS, progress=after(250_000, fail))
    kept = convert(TINY / "llama", tmp_path / "package", SIX_SHARDS).steps[5].made

    assert "28 weights, 418.3 KiB, 3 shards were there" == kept
    assert contents(tmp_path / "wanted") == contents(tmp_path / "package")


@pytest.fixture
def source(tmp_path):
    """The tiny Llama, to be harmed."""
    folder = tmp_path / "source"
    folder.mkdir()
    for file in (TINY / "llama").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_a_checkpoint_that_shrinks_meanwhile_is_said_and_nothing_is_left(tmp_path, source):
    def shrink():
        os.truncate(source / "model.safetensors", 200_000)

    with pytest.raises(CheckpointError, match=r"model\.safetensors ended while it was read"):
        convert(source, tmp_path / "package", SIX_SHARDS, progress=after(250_000, shrink))
    assert [source] == list(tmp_path.iterdir())


def test_a_checkpoint_that_changes_meanwhile_is_said_and_nothing_is_left(tmp_path, source):
    def change():
        with (source / "model.safetensors").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
        os.utime(source / "model.safetensors", ns=(1, 1))

    with pytest.raises(CheckpointError, match="source changed while it was converted"):
        convert(source, tmp_path / "package", SIX_SHARDS, progress=after(250_000, change))
    assert [source] == list(tmp_path.iterdir())


def _convert_held(destination, held, may_end):
    def progress(doing, done, total):
        held.set()
        assert may_end.wait(60)

    convert(TINY / "llama", destination, progress=progress)


def test_a_second_converter_waits_for_the_first_and_takes_its_package(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, may_end = context.Event(), context.Event()
    first = context.Process(target=_convert_held, args=(tmp_path / "package", held, may_end))
    first.start()
    assert held.wait(60)
    waited_for = []

    def waiting(path):
        waited_for.append(path)
        may_end.set()

    second = convert(TINY / "llama", tmp_path / "package", waiting=waiting)
    first.join()

    assert 0 == first.exitcode
    assert [work_path(tmp_path / "package")] == waited_for
    assert () == second.steps
    assert [tmp_path / "package"] == list(tmp_path.iterdir())


def test_a_lock_on_a_folder_that_its_holder_removed_is_not_taken_for_one(tmp_path):
    work_path(tmp_path / "package").mkdir()
    held = os.open(work_path(tmp_path / "package"), os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)

    def holder_ends(path):
        path.rmdir()
        os.close(held)

    with work_folder(tmp_path / "package", holder_ends) as work:
        assert work.is_dir()
        other = os.open(work, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
