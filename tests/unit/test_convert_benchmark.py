"""The benchmark of a conversion's memory, on a model of a few megabytes: what it measures becomes a row."""

import csv
import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_model import LLAMA_CONFIG

from trivet.framework.model.checkpoints.readers import open_checkpoint

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "convert.py"


@pytest.fixture
def script(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("convert_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "convert.csv")
    monkeypatch.setattr(module, "SHAPE", LLAMA_CONFIG)
    monkeypatch.setattr(module, "_SHARD_BYTES", 100_000)
    return module


def test_the_checkpoint_has_the_size_asked_for_and_takes_none(script, tmp_path):
    num_bytes, largest = script.sparse_checkpoint(tmp_path, 4_000_000)
    checkpoint = open_checkpoint(tmp_path)

    assert 3_900_000 < num_bytes < 4_100_000
    assert len(checkpoint.files) > 10
    assert num_bytes < checkpoint.size_bytes < num_bytes + 100_000
    assert 512 * 64 * 2 == largest
    assert sum(file.stat().st_blocks * 512 for file in checkpoint.files) < num_bytes / 2


def test_a_conversion_becomes_a_row_and_leaves_nothing(script, tmp_path):
    for _ in range(2):
        result = CliRunner().invoke(script.convert, ["--size", "4MB", "--place", str(tmp_path)])
        assert 0 == result.exit_code, result.output
    rows = list(csv.DictReader((tmp_path / "convert.csv").open()))

    assert 2 == len(rows)
    assert 20 << 20 < int(rows[0]["peak_rss_bytes"]) < 1 << 30
    assert [tmp_path / "convert.csv"] == list(tmp_path.iterdir())
