"""Ranks as processes that PyTorch joins: they load one package together, and end together when one of them fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch: make test-ascend installs it")

from tests.system.tiny import FIXTURES
from trivet.framework.model.convert import convert
from trivet.framework.model.manifest import read_manifest
from trivet.framework.model.steps import Wanted
from trivet.serve.bench.peers.free_port import free_port

# Loads as a rank and prints a checksum of all that it has. A number in `argv` is a window before which it stops.
_LOAD = """
import sys, time, xxhash
from pathlib import Path
from trivet.base.errors import TrivetError
from trivet.driver.devices.torch_group import TorchGroup
from trivet.framework.model.loading import broadcast
from trivet.framework.model.loading.ranks import read_rank
from trivet.framework.model.loading.read import ReadOptions
from trivet.framework.model.loading.times import LoadTimes
from trivet.framework.model.manifest import read_manifest
folder, rank, num_ranks, port, timeout_s, act = Path(sys.argv[1]), *map(int, sys.argv[2:6]), sys.argv[6]
broadcast.read_together.__kwdefaults__["buffer_bytes"] = 16384  # so that there are many windows
group = TorchGroup(rank, num_ranks, f"127.0.0.1:{port}", timeout_s)
class Acting:
    rank, num_ranks, tell, close = group.rank, group.num_ranks, group.tell, group.close
    windows = 0
    def broadcast(self, address, num_bytes):
        group.broadcast(address, num_bytes)
        self.windows += 1
        if act == "spoil":
            import ctypes
            ctypes.memset(address, self.windows, 1)
    def agree(self, failure=None):
        if act == "hang" and self.windows == 2:
            print("hangs", flush=True)
            time.sleep(600)
        group.agree(failure)
try:
    weights = read_rank(folder, read_manifest(folder), rank, ReadOptions(1, "buffered"), LoadTimes(), group=Acting())
except TrivetError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
hasher = xxhash.xxh3_64()
for name in sorted(weights.arrays):
    hasher.update(weights.arrays[name].tobytes())
print(hasher.hexdigest(), weights.report.num_bytes, weights.report.received_bytes)
"""


def start(
    folder: Path, num_ranks: int, acts: dict[int, str] | None = None, timeout_s: int = 600
) -> list[subprocess.Popen[str]]:
    """A process for each rank. Its patience is longer than ours, so that what ends in time was not waited for."""
    port = free_port()
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    said = [(rank, num_ranks, port, timeout_s, (acts or {}).get(rank, "")) for rank in range(num_ranks)]
    return [
        subprocess.Popen(
            [sys.executable, "-c", _LOAD, str(folder), *map(str, each)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ,
        )
        for each in said
    ]  # fmt: skip


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of each, all within the time that a hang would exceed."""
    told = [process.communicate(timeout=120) for process in processes]
    return [(process.returncode, *each) for process, each in zip(processes, told, strict=True)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(FIXTURES / "llama", tmp_path_factory.mktemp("whole") / "package", Wanted()).package.path


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(FIXTURES / "llama", tmp_path_factory.mktemp("cut") / "package", Wanted(num_ranks=2)).package.path


def test_three_processes_have_a_whole_model_of_which_one_read(whole: Path) -> None:
    told = ended(start(whole, 3))

    assert [0, 0, 0] == [status for status, _, _ in told], told
    sums, read, received = zip(*(out.split() for _, out, _ in told), strict=True)
    assert 1 == len(set(sums))
    assert [True, False, False] == [int(each) > 0 for each in read]
    assert [False, True, True] == [int(each) > 0 for each in received]


def test_ranks_of_a_cut_package_read_their_own_and_get_what_all_have(cut: Path) -> None:
    manifest = read_manifest(cut)
    shared = sum(pieces[0].bytes for pieces in manifest.tensors.values() if len(pieces) == 1)
    told = ended(start(cut, 2))

    assert [0, 0] == [status for status, _, _ in told], told
    read, received = zip(*(map(int, out.split()[1:]) for _, out, _ in told), strict=True)
    assert 0 == received[0]
    assert shared <= received[1]
    assert read[0] - read[1] == received[1]  # each byte of the package was read once


def test_a_receiver_that_has_other_bytes_ends_all_with_its_sentence(whole: Path) -> None:
    told = ended(start(whole, 3, {1: "spoil"}))

    assert [1, 1, 1] == [status for status, _, _ in told]
    (sentence,) = {errors.splitlines()[0].removeprefix("rank 1: ") for _, _, errors in told}
    assert "has the checksum" in sentence


@pytest.mark.parametrize("gone", [0, 1])
def test_a_rank_that_is_killed_ends_the_others_at_once(whole: Path, gone: int) -> None:
    processes = start(whole, 3, {gone: "hang"})
    output = processes[gone].stdout
    assert output is not None and "hangs\n" == output.readline()
    processes[gone].send_signal(signal.SIGKILL)
    told = ended(processes)

    assert -signal.SIGKILL == told[gone][0]
    for status, _, errors in (told[rank] for rank in range(3) if rank != gone):
        assert 1 == status
        assert "waited for" in errors and "Traceback" not in errors


def test_a_rank_that_hangs_ends_the_others_when_their_time_is_up(whole: Path) -> None:
    processes = start(whole, 2, {1: "hang"}, timeout_s=20)
    out, errors = processes[0].communicate(timeout=120)
    processes[1].kill()
    processes[1].communicate()

    assert (1, "") == (processes[0].returncode, out)
    assert "rank 0: waited for whether all go on from 1 other ranks" in errors


def test_ranks_that_never_come_are_told_of_and_not_waited_for(whole: Path) -> None:
    processes = start(whole, 2, timeout_s=5)
    processes[1].kill()
    processes[1].communicate()
    out, errors = processes[0].communicate(timeout=120)

    assert (1, "") == (processes[0].returncode, out)
    assert "rank 0: 2 ranks did not meet at 127.0.0.1:" in errors


def test_ctrl_c_ends_a_rank_that_waits_for_others(whole: Path) -> None:
    program = "import torch; from trivet.cli import main; print('starts', flush=True); main()"
    command = [sys.executable, "-c", program, "load", str(whole), "--rank", "0", "--ranks", "2"]
    with subprocess.Popen(
        [*command, "--broadcast", f"127.0.0.1:{free_port()}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    ) as process:  # fmt: skip
        assert process.stdout is not None and "starts\n" == process.stdout.readline()
        time.sleep(3)  # into the wait; before it, the same is asked of an import
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()  # one that goes on would be waited for without end

    assert 1 == process.returncode
    assert "Aborted!" in errors and "Traceback" not in errors
