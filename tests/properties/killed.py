"""Converts again and again, killed between two lines of our code; run by test_conversion.py in a process of its own.

Forks, so that a killed conversion costs milliseconds, which a process with threads must not do.
"""

import os
import random
import shutil
import signal
import sys
from pathlib import Path

from trivet.base.errors import CheckpointError
from trivet.framework.model import convert as conversion
from trivet.framework.model.package import open_package
from trivet.framework.model.steps import Wanted
from trivet.framework.model.work_folder import work_path

OURS = str(Path(conversion.__file__).parent)
WANTED = Wanted(shard_bytes=100_000)


def run(source: Path, destination: Path, last_line: int | None) -> int:
    """Convert in a child that kills itself after so many lines; the lines it ran, None of them if it was killed."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        lines = 0

        def trace(frame, event, argument):
            nonlocal lines
            if not frame.f_code.co_filename.startswith(OURS):
                return None
            lines += event == "line"
            if lines == last_line:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        conversion.convert(source, destination, WANTED)
        sys.settrace(None)
        os.write(send, str(lines).encode())
        os._exit(0)
    os.close(send)
    _, status = os.waitpid(child, 0)
    told = os.read(receive, 20)
    os.close(receive)
    assert os.WIFSIGNALED(status) == (not told), f"the child neither ended nor was killed: {status}"
    return int(told or 0)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_half_made(destination: Path, wanted: dict[str, bytes]) -> None:
    """Whatever opens, in place or in the work folder, is whole."""
    for folder in (destination, work_path(destination) / "package"):
        try:
            open_package(folder)
        except CheckpointError:
            continue
        assert wanted == contents(folder)


def main(source: Path, place: Path, num_kills: int, seed: int) -> None:
    random.seed(seed)
    num_lines = run(source, place / "wanted", None)
    wanted = contents(place / "wanted")
    points = [0]
    for i in range(num_kills):
        destination = place / f"package{i}"
        # Later lines are in a resumed conversion: kill some of those again.
        for _ in range(random.choice([1, 1, 2, 3])):
            points.append(random.randint(1, num_lines))
            run(source, destination, points[-1])
            check_half_made(destination, wanted)
        run(source, destination, None)
        assert wanted == contents(destination), points
        assert not work_path(destination).exists(), points
        shutil.rmtree(destination)
    print(f"{len(points) - 1} kills among {num_lines} lines")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
