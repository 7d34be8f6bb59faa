"""`trivet load` as a person meets it: the report, how files would be read, and storage that fails under it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.system.injector import build_injector
from tests.system.tiny import FIXTURES
from trivet.base.settings import Settings
from trivet.framework.model.loader import open_model
from trivet.framework.model.loading.trial import load_once
from trivet.framework.model.package import Package

LLAMA = FIXTURES / "llama"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(cache_dir=tmp_path_factory.mktemp("cache"), api_key=None, cpu_target=None)


@pytest.fixture(scope="module")
def package(settings: Settings) -> Package:
    return open_model(LLAMA, settings=settings)


def trivet(
    *arguments: str | Path, settings: Settings, preload: Path | None = None, before: str = ""
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; `before` is Python that runs first in it."""
    environ = {
        **os.environ,
        "TRIVET_CACHE": str(settings.cache_dir),
        **({"LD_PRELOAD": str(preload)} if preload else {}),
    }
    program = f"{before}\nfrom trivet.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, env=environ, check=False
    )


def test_the_report_has_every_phase_in_order_and_what_held_it_up(package: Package, settings: Settings) -> None:
    done = trivet("load", package.path, "--json", settings=settings)
    report = json.loads(done.stdout)

    assert ["facts", "open", "read", "bind", "warm-up"] == list(report["phases"])
    assert sum(stored.bytes for stored in package.stored.values()) == report["read"]["verified"]
    assert report["total_s"] == pytest.approx(sum(report["phases"].values()))
    assert {"what", "help"} == report["bottleneck"].keys()


def test_converting_is_a_phase_of_its_own(tmp_path: Path) -> None:
    fresh = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    report = load_once(LLAMA, settings=fresh)

    assert ["facts", "transform", "open"] == list(report.phases)[:3]


def test_a_stock_checkpoint_is_read_as_it_is_stored(settings: Settings) -> None:
    done = trivet("load", LLAMA, "--as-stored", "--json", settings=settings)
    report = json.loads(done.stdout)

    assert 0 == report["read"]["verified"]
    assert ["facts", "open", "read"] == list(report["phases"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.gguf", "is not a folder of safetensors files"),
        ("absent", "does not exist"),
        ("empty", "has 0 safetensors"),
    ],
)
def test_what_is_no_published_folder_is_refused(tmp_path: Path, settings: Settings, name: str, message: str) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "empty").mkdir()
    done = trivet("load", tmp_path / name, "--as-stored", settings=settings)

    assert 1 == done.returncode
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_staged_way_says_what_copies_took(package: Package, settings: Settings) -> None:
    done = trivet("load", package.path, "--staged", settings=settings)

    assert 0 == done.returncode, done.stderr
    assert "in the device's memory" in done.stdout
    assert "compared with their checksums" in done.stdout


def test_explain_names_file_engine_and_reason_and_reads_no_weight(tmp_path: Path, settings: Settings) -> None:
    copied = tmp_path / "package"
    shutil.copytree(open_model(LLAMA, settings=settings).path, copied)
    shard = next(copied.glob("*.safetensors"))
    with shard.open("r+b") as changing:
        changing.seek(-10, os.SEEK_END)
        changing.write(b"0123456789")
    done = trivet("load", copied, "--explain", "--engine", "buffered", settings=settings)

    assert f"{shard} on " in done.stdout
    assert "by buffered (" in done.stdout
    assert "→ asked for" in done.stdout


def test_the_picture_is_svg_with_a_bar_for_every_phase_and_extent(
    tmp_path: Path, package: Package, settings: Settings
) -> None:
    picture = tmp_path / "load.svg"
    done = trivet("load", package.path, "--svg", picture, "--json", settings=settings)
    report = json.loads(done.stdout)
    titles = [each.text or "" for each in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}title")]

    assert len(report["phases"]) + len(report["read"]["extents"]) == len(titles)
    assert any(title.startswith("warm-up ") for title in titles)


def test_every_engine_gives_the_same_answer(package: Package, settings: Settings) -> None:
    forced = (
        "import trivet.framework.model.loader as loader; load = loader.load\n"
        "loader.load = lambda *arguments, **options: load(*arguments, **{**options, 'engine': %r})"
    )
    ask = ("generate", package.path, "hello", "--raw", "--max-tokens", "8")
    wanted = trivet(*ask, settings=settings).stdout
    for engine in ("buffered", "direct", "io_uring"):
        done = trivet(*ask, settings=settings, before=forced % engine)

        assert (wanted == done.stdout != "") or f"--engine {engine}" in done.stderr  # it cannot be had here


def test_without_o_direct_files_come_through_the_page_cache_and_the_reason_is_told(
    package: Package, settings: Settings
) -> None:
    explained = trivet("load", package.path, "--explain", "--json", settings=settings, before=_COLD + _NO_DIRECT)
    loaded = trivet("load", package.path, "--json", settings=settings, before=_COLD + _NO_DIRECT)
    asked = trivet("load", package.path, "--engine", "direct", settings=settings, before=_NO_DIRECT)
    (row,) = json.loads(explained.stdout)
    if row["filesystem"] == "tmpfs":
        pytest.skip(row["reason"])

    assert ("buffered", "O_DIRECT: Invalid argument") == (row["engine"], row["reason"])
    assert sum(stored.bytes for stored in package.stored.values()) == json.loads(loaded.stdout)["read"]["verified"]
    assert 1 == asked.returncode
    assert "O_DIRECT: Invalid argument" in asked.stderr


def test_without_io_uring_threads_read_and_the_reason_is_told(package: Package, settings: Settings) -> None:
    """The kernel refuses the call to this process, as containers' filters do."""
    done = trivet("load", package.path, "--explain", "--json", settings=settings, before=_COLD + _NO_RING)
    asked = trivet("load", package.path, "--engine", "io_uring", settings=settings, before=_NO_RING)
    (row,) = json.loads(done.stdout)
    if row["filesystem"] == "tmpfs":
        pytest.skip(row["reason"])

    assert "direct" == row["engine"]
    assert "io_uring_setup: Operation not permitted" in row["reason"]
    assert 1 == asked.returncode
    assert "io_uring_setup: Operation not permitted" in asked.stderr


@pytest.fixture(scope="module")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that makes reads of shards fail or last."""
    return build_injector(tmp_path_factory.mktemp("injector"), _INJECTOR)


@pytest.mark.parametrize("engine", ["buffered", "direct"])
def test_an_input_output_error_names_file_tensor_and_offset(
    package: Package, settings: Settings, injector: Path, engine: str
) -> None:
    done = trivet("load", package.path, "--engine", engine, settings=settings, preload=injector)
    if "O_DIRECT" in done.stderr:
        pytest.skip("files here cannot be read with O_DIRECT")

    assert 1 == done.returncode
    assert "Traceback" not in done.stderr
    assert "cannot be read at byte" in done.stderr
    assert "Input/output error" in done.stderr
    assert "tensor " in done.stderr


def test_an_interrupt_ends_a_load_whose_storage_hangs(package: Package, settings: Settings, injector: Path) -> None:
    environ = {**os.environ, "TRIVET_CACHE": str(settings.cache_dir), "LD_PRELOAD": str(injector), "INJECT": "slow"}
    program = "from trivet.cli import main; main()"
    command = [sys.executable, "-c", program, "load", str(package.path), "--engine", "buffered"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stderr is not None
        assert "reading\n" == process.stderr.readline()  # from the injector: a read is in flight
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)

    assert 1 == process.returncode
    assert "" == out
    assert "Aborted!" in errors
    assert "Traceback" not in errors


def test_a_load_that_failed_leaves_nothing_behind_for_the_next(package: Package, settings: Settings) -> None:
    """Descriptors and memory of a process that goes on after the error, as a server does."""
    shard = next(package.path.glob("*.safetensors"))
    good = shard.read_bytes()
    program = (
        "import os, sys\nfrom trivet.base.errors import CheckpointError\n"
        "from trivet.framework.model.loader import load\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1])\n"
        "def attempt():\n try: load(sys.argv[1])\n except CheckpointError: return\n sys.exit('it loaded')\n"
        "attempt()\nfds, pages = len(os.listdir('/proc/self/fd')), resident()\n"
        "for _ in range(30): attempt()\n"
        "print(len(os.listdir('/proc/self/fd')) - fds, resident() - pages)"
    )
    try:
        shard.write_bytes(good[:-5000] + bytes(5000))
        done = subprocess.run(
            [sys.executable, "-c", program, package.path], capture_output=True, text=True, check=False,
            env={**os.environ, "TRIVET_CACHE": str(settings.cache_dir)},
        )  # fmt: skip
    finally:
        shard.write_bytes(good)
    assert 0 == done.returncode, done.stderr
    descriptors, pages = map(int, done.stdout.split())

    assert 0 == descriptors
    assert pages * 4096 < 30 * 200_000  # thirty arenas of 450 kB would be twice that


def test_a_step_over_weights_whose_file_was_cut_is_an_error(
    package: Package, settings: Settings, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(package.path, tmp_path / "package"))
    shard = next(copied.glob("*.safetensors"))
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom trivet.base.errors import CheckpointError\n"
        "from trivet.framework.graph.profile import one_sequence\nfrom trivet.framework.memory.arena import Arena\n"
        "from trivet.framework.model.loader import load\n"
        "Arena.take_in = lambda arena: None\n"  # it is, before anybody could cut so small a file
        "loaded = load(Path(sys.argv[1]).parent, engine='mapped', max_context=16)\n"
        "batch = one_sequence(4, 0, loaded.plan.slot_tokens)\nloaded.plan.run(batch)\n"
        "os.truncate(sys.argv[1], 100_000)\n"
        "try: loaded.plan.run(batch)\nexcept CheckpointError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, shard], capture_output=True, text=True, check=False,
        env={**os.environ, "TRIVET_CACHE": str(settings.cache_dir)},
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr
    assert f"{shard} was cut before byte " in done.stdout


# Reading the header of so small a package brings all of it into the page cache.
_COLD = """
from trivet.framework.model.loading.source import Source
Source.resident_share = lambda *_: 0.0
"""

_NO_DIRECT = """
import os
_open = os.open
def refusing(path, flags, *rest, **more):  # as file systems without it do
    if flags & os.O_DIRECT: raise OSError(22, os.strerror(22))
    return _open(path, flags, *rest, **more)
os.open = refusing
"""

_NO_RING = """
import ctypes, struct
# If the number of the call is 425 (io_uring_setup): EPERM; else allow. linux/filter.h, linux/seccomp.h
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()  # PR_SET_SECCOMP
"""

_INJECTOR = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_shard(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, ".safetensors") != NULL;
}

ssize_t pread64(int file, void *to, size_t count, off_t offset) {
    if (is_shard(file)) {
        const char *what = getenv("INJECT");
        if (what == NULL) {
            errno = EIO;
            return -1;
        }
        static int told = 0;
        if (!__sync_lock_test_and_set(&told, 1)) fputs("reading\n", stderr), fflush(stderr);
        sleep(2);
    }
    return syscall(SYS_pread64, file, to, count, offset);
}

ssize_t pread(int file, void *to, size_t count, off_t offset) { return pread64(file, to, count, offset); }
"""
