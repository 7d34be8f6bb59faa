"""`trivet serve` that does not come to serve: an error that can be mended, or a signal; never a traceback or a hang."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.tiny import FIXTURES
from trivet.base.settings import Settings
from trivet.framework.model.loader import open_model

_PROGRAM = "from trivet.cli import main; main()"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = Settings(cache_dir=tmp_path_factory.mktemp("cache"), api_key=None, cpu_target=None)
    return open_model(FIXTURES / "llama", settings=settings).path


def serve(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _PROGRAM, "serve", str(package), "--port", "0", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def no_shard(package: Path) -> None:
    next(package.glob("*.safetensors")).unlink()


def other_bytes(package: Path) -> None:
    shard = next(package.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")


def no_tokenizer(package: Path) -> None:
    (package / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (no_shard, "is missing"),
        (other_bytes, "has the checksum"),
        (no_tokenizer, "tokenizer.json cannot be used"),
    ],
)
def test_a_damaged_package_is_an_error_of_two_lines_and_the_server_is_gone(
    package: Path, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    copy = Path(shutil.copytree(package, tmp_path / "package"))
    damage(copy)
    done = serve(copy)
    said = [line for line in done.stderr.splitlines() if not line.startswith("time=")]

    assert 1 == done.returncode
    assert said[0].startswith("trivet: ")
    assert words in said[0]
    assert 2 == len(said)


@pytest.mark.parametrize("before", [None, "3"])
def test_numpy_is_imported_without_threads_and_what_the_environment_says_of_them_stays(before: str | None) -> None:
    program = (
        "import os\nfrom trivet.cli.serve import import_numpy\nimport_numpy()\n"
        "print('numpy' in __import__('sys').modules, len(os.listdir('/proc/self/task')),"
        " os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    environ = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    environ |= {} if before is None else {"OPENBLAS_NUM_THREADS": before}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)

    assert f"True 1 {before}\n" == done.stdout


def test_a_port_in_use_is_told_before_the_model_is_looked_at() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = serve(Path("no such model"), "--port", str(port))

    assert 1 == done.returncode
    assert done.stderr.startswith(f"trivet: port {port} on 127.0.0.1 is in use")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 1), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_a_server_that_loads(package: Path, number: signal.Signals, status: int) -> None:
    program = (
        "import sys, time\nfrom trivet.framework.model import loader\n"
        "def parse(files): print('parsing', file=sys.stderr, flush=True); time.sleep(600)\n"
        f"loader.Tokenizer = parse\n{_PROGRAM}"
    )
    command = [sys.executable, "-c", program, "serve", str(package), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while (line := process.stderr.readline()) != "parsing\n":
            assert line, "it ended before it parsed"
        process.send_signal(number)
        errors = process.communicate(timeout=60)[1]

    assert status == process.returncode
    assert "Traceback" not in errors
