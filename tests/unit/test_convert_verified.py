"""The last step of a conversion: what it asks of a package before anybody sees it, and what it tells."""

import shutil

import numpy as np
import pytest
from small_model import LLAMA_CONFIG, TINY, llama_tensors, write_folder

from trivet.base.errors import CheckpointError
from trivet.framework.model import verification
from trivet.framework.model.convert import convert
from trivet.framework.model.steps import Wanted


def test_a_wrong_answer_is_never_published(tmp_path, monkeypatch):
    real = verification.one_sequence

    def forgets_its_past(num_tokens, past, slot_tokens):
        return real(num_tokens, past and past - 1, slot_tokens)

    monkeypatch.setattr(verification, "one_sequence", forgets_its_past)
    with pytest.raises(CheckpointError, match="is another when the prompt is cut in two"):
        convert(TINY / "llama", tmp_path / "package")
    assert [] == list(tmp_path.iterdir())


def test_a_chat_template_that_does_not_compile_is_never_published(tmp_path):
    folder = shutil.copytree(TINY / "llama", tmp_path / "checkpoint")
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(CheckpointError, match="chat template does not compile"):
        convert(folder, tmp_path / "package")

    assert not (tmp_path / "package").exists()


def test_an_answer_that_is_no_number_is_never_published(tmp_path):
    tensors = llama_tensors() | {"model.norm.weight": np.full(64, 0x7F80, np.uint16)}  # infinity in bfloat16
    write_folder(tmp_path / "model", tensors)

    with pytest.raises(CheckpointError, match="logits that are no numbers"):
        convert(tmp_path / "model", tmp_path / "package")
    assert [tmp_path / "model"] == list(tmp_path.iterdir())


def test_a_tokenizer_of_another_model_is_found(tmp_path):
    config = {**LLAMA_CONFIG, "vocab_size": 96}
    write_folder(tmp_path / "model", llama_tensors(config), config)

    with pytest.raises(CheckpointError, match=r"token \d+ of .* is not among the vocab_size 96"):
        convert(tmp_path / "model", tmp_path / "package")


def test_verifying_keeps_within_the_memory_it_is_given_and_says_what_it_left(tmp_path):
    made = convert(TINY / "llama", tmp_path / "package", Wanted(memory_bytes=100_000)).verification

    assert ((), "418.3 KiB of weights, 97.7 KiB of memory") == (made.prompt, made.not_run)
    assert 428_320 == made.num_bytes


def test_every_node_of_the_prompt_has_its_time(tmp_path):
    converted = convert(TINY / "llama", tmp_path / "package")
    timed = {node.value for node in converted.verification.node_times}

    assert timed <= {name for node in converted.package.graph.nodes for name in node.outputs}
    assert {"linear", "attention", "rope_kv_store"} <= {node.operator for node in converted.verification.node_times}
    assert sorted((node.seconds for node in converted.verification.node_times), reverse=True) == [
        node.seconds for node in converted.verification.node_times
    ]
