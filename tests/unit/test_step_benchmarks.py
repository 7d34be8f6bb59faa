"""The benchmarks of a step's growth and of the engine's share, on models of a moment."""

import csv
import importlib.util
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from tests.system.tiny import FIXTURES

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script(name: str, results: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", results)
    monkeypatch.setenv("TRIVET_CACHE", str(cache))
    return module


def test_a_step_is_measured_at_every_context_and_every_batch_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("growth", tmp_path, tmp_path, monkeypatch)
    small = {"vocab_size": 64, "hidden_size": 256, "intermediate_size": 32, "num_hidden_layers": 2,
             "num_attention_heads": 2, "num_key_value_heads": 2}  # fmt: skip
    monkeypatch.setattr(module, "SHAPE", {**module.SHAPE, **small})
    result = CliRunner().invoke(module.growth, ["--max-context", "512", "--max-batch", "4", "--repeats", "1"])
    rows = list(csv.DictReader((tmp_path / "growth.csv").open()))

    assert 0 == result.exit_code, result.output
    assert [("context", "128", "1"), ("context", "256", "1"), ("context", "512", "1"), ("batch", "512", "1"),
            ("batch", "512", "2"), ("batch", "512", "4")] == [
                (row["question"], row["context"], row["batch"]) for row in rows]  # fmt: skip
    assert all(0 < float(row["attention_s"]) for row in rows)
    assert 4 == (tmp_path / "growth.svg").read_text().count('stroke-width="2"')
    assert ElementTree.parse(tmp_path / "growth.svg").getroot().tag.endswith("svg")


def test_the_engines_share_is_measured_both_ways_with_every_sampling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("overhead", tmp_path / "overhead.csv", tmp_path, monkeypatch)
    monkeypatch.setattr(module, "_PROMPT", 8)
    result = CliRunner().invoke(module.overhead, [str(FIXTURES / "llama"), "--batch", "3", "--repeats", "1"])
    rows = list(csv.DictReader((tmp_path / "overhead.csv").open()))

    assert 0 == result.exit_code, result.output
    assert [(way, name) for way in module.WAYS for name in module.SAMPLINGS] == [
        (row["through"], row["sampling"]) for row in rows
    ]
    assert all(0 < float(row["sampler_share"]) < 1 and 0 < float(row["engine_share"]) < 1 for row in rows)


def test_the_engines_own_time_is_measured_by_the_number_of_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("null_plan", tmp_path / "null_plan.csv", tmp_path, monkeypatch)
    result = CliRunner().invoke(module.null_plan, ["--sequences", "1", "--sequences", "5", "--repeats", "2"])
    rows = list(csv.DictReader((tmp_path / "null_plan.csv").open()))

    assert 0 == result.exit_code, result.output
    assert ["1", "5"] == [row["running"] for row in rows]
    assert all(0 < float(row["step_ms"]) for row in rows)
