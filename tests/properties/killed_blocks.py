"""Publishes blocks again and again, killed between two lines of the file tier; run by test_kv_files.py in a process of
its own, as killed.py is."""

import random
import sys
from array import array
from pathlib import Path

import numpy as np

from tests.properties.mortal import lines_run
from trivet.framework.memory import file_tier
from trivet.framework.memory.block import HEADER_BYTES, checksums
from trivet.framework.memory.chain import Chain, Identity, Link
from trivet.framework.memory.file_tier import FileTier

IDENTITY = Identity(b"m" * 32, b"l" * 32)
BLOCK_BYTES = 8192
PIECES = (slice(0, 4096), slice(4096, BLOCK_BYTES))
NUM_BLOCKS = 6  # of the budget: fewer than are published, so that eviction is killed too
NUMBERS = range(20)


def link(number: int) -> Link:
    return Chain(IDENTITY, "").extend(array("i", [number]), 1, 1)[0]


def payload(number: int):
    return np.random.default_rng(number).integers(0, 256, BLOCK_BYTES, np.uint8)


def opened(folder: Path) -> FileTier:
    return FileTier(folder, NUM_BLOCKS * (HEADER_BYTES + BLOCK_BYTES), IDENTITY, PIECES)


def publish(folder: Path, numbers: list[int], last_line: int | None) -> int:
    """Open the folder and publish in a child that kills itself after so many lines; the lines it ran, 0 if killed."""
    return lines_run(
        lambda: opened(folder).publish([(link(n), payload(n), checksums(payload(n), PIECES)) for n in numbers]),
        lambda file: file == file_tier.__file__,
        last_line,
    )


def check(folder: Path) -> int:
    """Everything that is there is what it should be, and within the budget; how many blocks that is."""
    tier = opened(folder)
    into = np.empty(BLOCK_BYTES, np.uint8)
    held = [number for number in NUMBERS if tier.holds(link(number))]
    for number in held:
        assert tier.read(link(number), into) is not None, f"block {number} was given its name before its bytes"
        assert np.array_equal(payload(number), into)
    assert tier.used_bytes == sum(path.stat().st_blocks * 512 for path in folder.glob("*/*.kv*"))
    assert tier.used_bytes <= NUM_BLOCKS * (HEADER_BYTES + BLOCK_BYTES)
    tier.close()
    return len(held)


def main(folder: Path, num_kills: int, seed: int) -> None:
    random.seed(seed)
    num_lines = publish(folder / "first", [*NUMBERS][:8], None)
    counts: list[int] = []
    while len(counts) < num_kills:
        was_killed = not publish(folder / "kv", random.sample(NUMBERS, 4), random.randint(1, num_lines))
        held = check(folder / "kv")
        counts += [held] * was_killed
    assert max(counts) > 0, "nothing was ever published"
    print(f"{num_kills} kills among {num_lines} lines, {sum(counts)} blocks read back")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
