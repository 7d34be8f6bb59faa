"""A disk that fills up while a package is made: said plainly, nothing half made opens, and the next call goes on."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.injector import build_injector
from tests.system.tiny import FIXTURES
from trivet.base.errors import CheckpointError
from trivet.framework.model.convert import convert
from trivet.framework.model.package import open_package
from trivet.framework.model.steps import Wanted
from trivet.framework.model.work_folder import work_path

LLAMA = FIXTURES / "llama"
SHARDS = Wanted(shard_bytes=100_000)
SHARD_SIZE = ("--shard-size", "100000")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return contents(convert(LLAMA, tmp_path_factory.mktemp("undisturbed") / "package", SHARDS).package.path)


def check_half_made(destination: Path) -> None:
    """What a full disk leaves: shards that are whole and in the journal, and nothing that opens."""
    assert not destination.exists()
    with pytest.raises(CheckpointError, match="is not a package"):
        open_package(work_path(destination) / "package")
    kept = list((work_path(destination) / "package").iterdir())
    journal = (work_path(destination) / "journal").read_text()
    assert kept
    assert all(path.name in journal for path in kept)


# --- a file system of half a megabyte that another writer fills ---

_IN_A_SMALL_FILE_SYSTEM = """
import os, pickle, sys
from pathlib import Path
from tests.system import test_full_disk as here
from trivet.base.errors import ResourceError
from trivet.framework.model.convert import convert
disk, ballast = Path(sys.argv[1]), Path(sys.argv[1]) / "another"
destination = disk / "package"
def fill(doing, done, total):
    if done > 250_000 and not ballast.exists():
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)): pass
            except OSError: pass
try:
    convert(here.LLAMA, destination, here.SHARDS, progress=fill)
    sys.exit("it did not fail")
except ResourceError as error:
    print(error)
here.check_half_made(destination)
ballast.unlink()
made = convert(here.LLAMA, destination, here.SHARDS)
print(made.steps[5].made)
Path(sys.argv[2]).write_bytes(pickle.dumps(here.contents(destination)))
"""


def test_a_file_system_that_another_fills_is_an_error_and_with_room_again_the_same_call_goes_on(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    disk, result = tmp_path / "disk", tmp_path / "result"
    disk.mkdir()
    mounted = f"mount -t tmpfs -o size=700k none {disk}"
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "sh", "-c", mounted], check=False).returncode:
        pytest.skip("this user may not mount a file system, in a namespace of its own either")
    inside = f'{mounted} && exec "$0" "$@"'
    done = subprocess.run(
        [*alone, "sh", "-c", inside, sys.executable, "-c", _IN_A_SMALL_FILE_SYSTEM, disk, result],
        capture_output=True, text=True, check=False, cwd=FIXTURES.parents[2],
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr
    assert f"{disk}/package: the disk is full (No space left on device)" in done.stdout
    assert "the same command again" in done.stdout
    assert "shards were there" in done.stdout
    assert undisturbed == contents_of(result)


def contents_of(file: Path) -> dict[str, bytes]:
    read: dict[str, bytes] = pickle.loads(file.read_bytes())
    return read


# --- where nothing may be mounted: the C library says that there is no space ---


@pytest.fixture(scope="module")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose `write` has room for ROOM bytes of shards."""
    return build_injector(tmp_path_factory.mktemp("injector"), _INJECTOR)


@pytest.mark.parametrize("room", [0, 50_000, 250_000, 400_000])
def test_a_write_that_finds_no_room_is_an_error_and_the_same_command_goes_on(
    tmp_path: Path, undisturbed: dict[str, bytes], injector: Path, room: int
) -> None:
    destination = tmp_path / "package"
    command = [sys.executable, "-c", "from trivet.cli import main; main()", "convert", LLAMA, destination, *SHARD_SIZE]
    full = {**os.environ, "LD_PRELOAD": str(injector), "ROOM": str(room)}
    first = subprocess.run(command, capture_output=True, text=True, check=False, env=full)

    assert 1 == first.returncode, first.stdout
    assert "the disk is full (No space left on device)" in first.stderr
    assert "Traceback" not in first.stderr
    if room < 100_000:
        assert not work_path(destination).exists()  # no shard was whole: nothing to go on with
    else:
        check_half_made(destination)

    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == second.returncode, second.stderr
    assert (room >= 100_000) == ("shards were there" in second.stdout)
    assert undisturbed == contents(destination)


_INJECTOR = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

ssize_t write(int file, const void *bytes, size_t count) {
    static long written = 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        if (strstr(path, ".partial/package/") != NULL) {
            long room = atol(getenv("ROOM")) - written;
            if (room <= 0) {
                errno = ENOSPC;
                return -1;
            }
            if ((long)count > room) count = room; /* what a file system does: the last write is a short one */
            written += count;
        }
    }
    return syscall(SYS_write, file, bytes, count);
}
"""
