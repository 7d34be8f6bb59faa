"""What is said of two plans that agree, that nearly agree, and of one that goes wrong in the middle."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.system.tiny import FAMILIES, FIXTURES, recorded
from trivet.base.dtypes import Array
from trivet.base.errors import CheckpointError, ConfigError, ResourceError
from trivet.base.settings import Settings
from trivet.framework.engine.accuracy import Agreement, Answers, Published, Side, compare, measure
from trivet.framework.engine.published import open_published
from trivet.framework.model.loader import open_model

RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal((6, 40)).astype(np.float32)
TOKENS = [3, 1, 4, 1, 5, 9]
LAYERS = [RNG.standard_normal((6, 8)).astype(np.float32) for _ in range(3)]


def compared(logits: Array, layers: Sequence[Array] = LAYERS) -> Agreement:
    return compare(TOKENS, Answers(logits, layers), Answers(LOGITS, LAYERS))


def test_what_is_equal_agrees_in_everything() -> None:
    found = compared(LOGITS)

    assert (0.0, 0.0, 1.0, 1.0) == (found.max_error, found.max_kl, found.top_1, found.top_5)
    assert found.first_difference is None
    assert (0.0, 0.0, 0.0) == found.layers


def test_another_likeliest_token_is_found_with_the_margin_it_had() -> None:
    other = LOGITS.copy()
    second, first = np.argsort(LOGITS[4])[-2:]
    other[4, second] = LOGITS[4, first] + 1
    found = compared(other)

    assert 4 == found.first_difference
    assert pytest.approx(LOGITS[4, first] - LOGITS[4, second]) == found.margin_there
    assert pytest.approx(5 / 6) == found.top_1


def test_a_constant_added_to_all_logits_changes_no_distribution() -> None:
    found = compared(LOGITS + 3)

    assert found.max_kl < 1e-6
    assert pytest.approx(3, abs=1e-5) == found.mean_error


def test_drift_has_an_address() -> None:
    wrong = [LAYERS[0], LAYERS[1] * 1.1, LAYERS[2] * 1.2]

    assert (0.0, pytest.approx(0.1, rel=1e-3), pytest.approx(0.2, rel=1e-3)) == compared(LOGITS, wrong).layers


def test_bfloat16_is_near_float32_on_a_real_graph_and_float32_is_itself(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    prompt = recorded("llama")["prompt"].tolist()
    model, exact, half = str(FIXTURES / "llama"), Side("cpu", "float32"), Side("cpu", "bfloat16")

    assert 0.0 == measure(model, prompt, exact, exact, (0,), settings).max_error
    assert 0.0 < measure(model, prompt, half, exact, (0,), settings).mean_error < 0.02


def test_greedy_continuations_agree_up_to_the_first_token_that_differs() -> None:
    found = compare(TOKENS, Answers(LOGITS, LAYERS, (5, 7, 9, 2)), Answers(LOGITS, LAYERS, (5, 7, 8, 2)))

    assert (4, 2) == (found.greedy_tokens, found.greedy_agreed)


def test_another_model_is_no_reference() -> None:
    with pytest.raises(ConfigError, match="3 layers and a vocabulary of 40 against 2 and 40"):
        compare(TOKENS, Answers(LOGITS, LAYERS), Answers(LOGITS, LAYERS[:2]))


def test_a_greedy_continuation_is_the_recorded_one_and_another_package_is_a_reference(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    oracle, model = recorded("qwen3"), str(FIXTURES / "qwen3")
    package = open_model(model, dtype="float32", settings=settings).path
    subject, reference = Side("cpu", "float32"), Side("cpu", None, model=str(package))
    found = measure(model, oracle["prompt"].tolist(), subject, reference, (0,), settings, num_greedy=8)

    assert (8, 8) == (found.greedy_tokens, found.greedy_agreed)
    assert 0.0 == found.max_error


def test_the_published_implementation_is_an_extra_and_reads_checkpoints_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivet.framework.engine.published.find_spec", lambda name: None)
    with pytest.raises(ResourceError, match="--against hf: torch is not installed"):
        open_published(str(FIXTURES / "qwen3"))

    monkeypatch.setattr("trivet.framework.engine.published.find_spec", lambda name: name)
    with pytest.raises(CheckpointError, match=r"is a package or has no config\.json"):
        open_published(str(tmp_path))

    for name in ("config.json", "trivet.json"):  # a package has both
        (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError, match=r"is a package or has no config\.json"):
        open_published(str(tmp_path))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_published_implementation_gives_the_recorded_logits_and_layers(family: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'trivet[hf]'")
    settings = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    oracle, model = recorded(family), str(FIXTURES / family)
    prompt = oracle["prompt"].tolist()
    logits, layers = open_published(model)(prompt)
    found = measure(model, prompt, Side("cpu", "float32"), Published(), (0,), settings, num_greedy=4)

    assert np.abs(logits - oracle["logits_fp32"]).max() < 1e-3
    assert np.abs(layers[1] - oracle["hidden_fp32"][1]).max() < 1e-3
    assert found.max_error < 1e-3
    assert 1.0 == found.top_1
    assert (4, 4) == (found.greedy_tokens, found.greedy_agreed)
    assert max(found.layers) < 1e-4


def test_perplexity_is_that_of_the_next_token_and_of_an_even_choice_the_number_of_choices() -> None:
    even = np.zeros((6, 40), np.float32)
    sure = np.full((6, 40), -50, np.float32)
    sure[np.arange(5), TOKENS[1:]] = 50
    found = compare(TOKENS, Answers(sure, LAYERS), Answers(even, LAYERS))

    assert (pytest.approx(1), pytest.approx(40)) == (found.perplexity, found.reference_perplexity)


def test_int8_is_near_bfloat16_and_differs_from_it(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    prompt = recorded("llama")["prompt"].tolist()
    small, half = Side("cpu", "bfloat16", "int8"), Side("cpu", "bfloat16")
    found = measure(str(FIXTURES / "llama"), prompt, small, half, (0,), settings)

    assert 0.0 < found.mean_error < 0.05
    assert pytest.approx(found.reference_perplexity, rel=0.02) == found.perplexity


def test_a_cache_in_int8_is_near_one_in_bfloat16_and_differs_from_it(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    prompt = recorded("llama")["prompt"].tolist()
    small, half = Side("cpu", "bfloat16", kv_dtype="int8"), Side("cpu", "bfloat16")
    found = measure(str(FIXTURES / "llama"), prompt, small, half, (0,), settings)

    assert 0.0 < found.mean_error < 0.05
    assert pytest.approx(found.reference_perplexity, rel=0.02) == found.perplexity
    assert "bfloat16 with a KV cache in int8 on cpu" == str(small)
