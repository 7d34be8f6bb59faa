"""The comparison with a peer: in turn, as ratios, into rows; with a stand-in that always says ten tokens a second."""

import csv
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from tests.system.tiny import FIXTURES

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compare.py"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "compare.csv")
    monkeypatch.setenv("TRIVET_CACHE", str(tmp_path))
    return module


def stand_in(folder: Path, answer: str) -> Path:
    """A program that answers as llama-bench does."""
    program = folder / "llama-bench"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    return program


def test_each_question_becomes_a_row_with_the_ratio_and_the_circumstances(script: ModuleType, tmp_path: Path) -> None:
    peer = stand_in(tmp_path, json.dumps([{"avg_ts": 10.0, "build_commit": "abc"}]))
    arguments = [str(FIXTURES / "llama"), "--llama-bench", str(peer), "--gguf", str(peer)]
    result = CliRunner().invoke(script.compare, arguments)
    rows = list(csv.DictReader((tmp_path / "compare.csv").open()))

    assert 0 == result.exit_code, result.output
    assert [name for name, _, _ in script.QUESTIONS] == [row["question"] for row in rows]
    for row in rows:
        assert float(row["peer"]) == 10
        assert float(row["ratio"]) == pytest.approx(float(row["ours"]) / 10)
        assert float(row["ratio_low"]) <= float(row["ratio"]) <= float(row["ratio_high"])
        assert "llama.cpp abc" == row["peer_name"]


def test_a_peer_that_does_not_answer_is_named(script: ModuleType, tmp_path: Path) -> None:
    peer = stand_in(tmp_path, "segmentation fault")
    arguments = [str(FIXTURES / "llama"), "--llama-bench", str(peer), "--gguf", str(peer)]
    result = CliRunner().invoke(script.compare, arguments)

    assert "--llama-bench" in str(result.exception)
    assert not (tmp_path / "compare.csv").exists()
