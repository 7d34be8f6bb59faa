"""A conversion killed at any point is continued by the next, and its package has the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.system.tiny import FIXTURES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_conversion_killed_at_any_line_is_continued_to_the_same_bytes(family: str, tmp_path: Path) -> None:
    examples = settings().max_examples
    num_kills = examples // 12  # 10 in `make test`, 416 in `make soak`
    seed = 0 if examples < 1000 else int.from_bytes(os.urandom(4))
    command = [sys.executable, "-m", "tests.properties.killed", str(FIXTURES / family), str(tmp_path), str(num_kills)]
    done = subprocess.run([*command, str(seed)], capture_output=True, text=True, cwd=ROOT, timeout=3600)

    assert (0, "") == (done.returncode, done.stderr), f"seed {seed}"
    assert " kills among " in done.stdout
