"""What is said of two plans that agree, that nearly agree, and of one that goes wrong in the middle."""

from pathlib import Path

import numpy as np
import pytest

from tests.system.tiny import FIXTURES, recorded
from trivet.base.settings import Settings
from trivet.framework.engine.accuracy import Side, compare, measure

RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal((6, 40)).astype(np.float32)
LAYERS = [RNG.standard_normal((6, 8)).astype(np.float32) for _ in range(3)]


def test_what_is_equal_agrees_in_everything() -> None:
    found = compare(LOGITS, LOGITS, LAYERS, LAYERS)

    assert (0.0, 0.0, 1.0, 1.0) == (found.max_error, found.max_kl, found.top_1, found.top_5)
    assert found.first_difference is None
    assert (0.0, 0.0, 0.0) == found.layers


def test_another_likeliest_token_is_found_with_the_margin_it_had() -> None:
    other = LOGITS.copy()
    second, first = np.argsort(LOGITS[4])[-2:]
    other[4, second] = LOGITS[4, first] + 1
    found = compare(other, LOGITS, LAYERS, LAYERS)

    assert 4 == found.first_difference
    assert pytest.approx(LOGITS[4, first] - LOGITS[4, second]) == found.margin_there
    assert pytest.approx(5 / 6) == found.top_1


def test_a_constant_added_to_all_logits_changes_no_distribution() -> None:
    found = compare(LOGITS + 3, LOGITS, LAYERS, LAYERS)

    assert found.max_kl < 1e-6
    assert pytest.approx(3, abs=1e-5) == found.mean_error


def test_drift_has_an_address() -> None:
    wrong = [LAYERS[0], LAYERS[1] * 1.1, LAYERS[2] * 1.2]

    assert (0.0, pytest.approx(0.1, rel=1e-3), pytest.approx(0.2, rel=1e-3)) == compare(
        LOGITS, LOGITS, wrong, LAYERS
    ).layers


def test_bfloat16_is_near_float32_on_a_real_graph_and_float32_is_itself(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    prompt = recorded("llama")["prompt"].tolist()
    model, exact, half = str(FIXTURES / "llama"), Side("cpu", "float32"), Side("cpu", "bfloat16")

    assert 0.0 == measure(model, prompt, exact, exact, (0,), settings).max_error
    assert 0.0 < measure(model, prompt, half, exact, (0,), settings).mean_error < 0.02
