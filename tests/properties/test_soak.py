"""Served for hours while clients leave, run late and the disk of the KV tier fails: no wrong answer, nothing left."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from hypothesis import settings

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


def test_after_hours_of_aborts_and_a_failing_disk_answers_are_right_and_nothing_is_left(tmp_path: Path) -> None:
    is_soak = settings().max_examples >= 1000
    seconds = float(os.environ.get("SOAK_SECONDS", "3600")) if is_soak else 0.0
    seed = int.from_bytes(os.urandom(4)) if is_soak else 0
    command = [sys.executable, "-m", "tests.properties.soaked", str(tmp_path), "8", str(seconds), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=seconds + 600)
    assert 0 == done.returncode, f"seed {seed}: {done.stderr[-2000:]}"
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    quarter = len(rounds) // 4
    resident = [each["resident_bytes"] for each in rounds]
    growth = median(resident[-quarter:]) - median(resident[quarter : 2 * quarter])

    # Who is late and which file fails, the clock decides: of eight rounds nothing can be asked there.
    met = ("whole", "left", "late", "failures") if is_soak else ("whole", "left")
    assert all(sum(each[end] for each in rounds) > 0 for end in met), "all was met"
    assert 1 == len({each["descriptors"] for each in rounds})
    assert growth < 8 * MIB, f"seed {seed}: {growth / MIB:.1f} MiB more over {len(rounds) // 2} rounds"
