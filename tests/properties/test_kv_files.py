"""Blocks published by a process that is killed at any point are whole or not there."""

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).parents[2]


def test_a_writer_killed_at_any_line_leaves_only_whole_blocks_within_the_budget(tmp_path: Path) -> None:
    examples = settings().max_examples
    num_kills = examples // 6  # 20 in `make test`; in `make soak` the 500 and more
    seed = 0 if examples < 1000 else int.from_bytes(os.urandom(4))
    command = [sys.executable, "-m", "tests.properties.killed_blocks", str(tmp_path), str(num_kills), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=3600)

    assert (0, "") == (done.returncode, done.stderr), f"seed {seed}"
    assert " kills among " in done.stdout
