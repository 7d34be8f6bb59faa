"""The comparison with other engines, with stand-ins for them: children that answer what they are told to."""

from __future__ import annotations

import csv
import sys
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_model import add_tokenizer, finish, gguf_writer

from tests.system.tiny import FIXTURES
from trivet.base.dtypes import cast
from trivet.base.errors import TrivetError
from trivet.driver.devices.table import open_device
from trivet.driver.readers.host import read_facts
from trivet.framework.model.checkpoints.checkpoint import Checkpoint
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.serve.bench.peers import compare as comparing
from trivet.serve.bench.peers.child import Child
from trivet.serve.bench.peers.compare import Ratio, compare
from trivet.serve.bench.peers.engines import Peer, Place
from trivet.serve.bench.peers.picture import picture
from trivet.serve.bench.peers.questions import CHECK_TOKENS, Question
from trivet.serve.bench.peers.rows import append
from trivet.serve.bench.peers.weights import Form, Weights, first_layers, weights_of
from trivet.serve.bench.peers.workers import worker
from trivet.serve.bench.stamp import stamp

QUESTION = Question("decode", prompt=4, batch=2, new=3)


def child(name: str, body: str) -> Child:
    """A child that is ready at once and answers each question with `answer(question)`, defined by `body`."""
    program = textwrap.dedent(body) + textwrap.dedent("""
        import json, sys
        print("a library's own word", flush=True)
        print("@answer", json.dumps({"ready": True, "version": "1.0"}), flush=True)
        for line in sys.stdin:
            print("@answer", json.dumps(answer(json.loads(line))), flush=True)
    """)
    return Child(name, [sys.executable, "-c", program], {})


def engine(seconds: float, tokens: str = "list(range(question['new']))", is_text: str = "True") -> str:
    """Answers every question as ours does: so many seconds, and these greedy tokens, all clear but the third."""
    return f"""
        def answer(question):
            if question["kind"] == "greedy":
                margins = [1.0] * question["new"]
                margins[2] = 0.01
                return {{"tokens": {tokens}, "margins": margins, "is_text": {is_text}}}
            if question["kind"] == "limits":
                return {{"read_bytes_per_s": 1000.0}}
            return {{"seconds": {seconds}, "bytes_per_token": 10.0, "flops_per_token": 7.0}}
    """


def measured(monkeypatch: pytest.MonkeyPatch, theirs: str, told: list[str], own: str = engine(0.5)) -> list[Ratio]:
    monkeypatch.setattr(comparing, "ours", lambda bits, place: child("trivet", own))
    peers = [Peer("stand-in", 16, lambda name, place: child(name, theirs)), Peer("absent", 8, lambda name, place: None)]
    place = Place(Weights("none", Path()), Path(), 1, None, None, told.append)
    return list(compare(peers, place, vocab_size=1000, pairs=3, questions=[QUESTION], tell=told.append))


def test_each_question_is_a_ratio_of_tokens_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    (ratio,) = measured(monkeypatch, engine(1.5), told)

    assert ("decode, batch 2", "stand-in", "1.0", 16, 3) == (
        ratio.question, ratio.peer, ratio.version, ratio.bits, ratio.pairs)  # fmt: skip
    assert (12.0, 4.0) == (ratio.ours, ratio.theirs)
    assert (3.0, 3.0, 3.0) == (ratio.ratio, ratio.low, ratio.high)
    assert 12.0 * 10 / 1000 == pytest.approx(ratio.share_of_bandwidth)
    assert f"same {CHECK_TOKENS} greedy tokens" == ratio.agreed
    assert "absent: left out, its programs were not named" in told


def test_a_peer_that_answers_otherwise_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    assert [] == measured(monkeypatch, engine(1.5, "[0, 9] + list(range(2, question['new']))"), told)
    assert any("stand-in answers otherwise at token 1, which was clear by 1.00" in words for words in told)


def test_a_peer_may_part_where_the_margin_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    (ratio,) = measured(monkeypatch, engine(1.5, "[0, 1, 7] + list(range(3, question['new']))"), [])

    assert "same 2 greedy tokens, then one that 0.01 decides" == ratio.agreed


def test_peers_are_asked_for_an_answer_of_whole_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    odd_is_broken = "question['prompts'][0][0] % 2 == 0"
    fails = f"""
        def answer(question):
            if question["kind"] == "greedy" and not ({odd_is_broken}):
                sys.exit("incomplete UTF-8")
            return {{"tokens": list(range({CHECK_TOKENS})), "seconds": 1.5}}
    """
    asked = [prompt[0] for prompt in comparing._prompts(Question("decode", prompt=32, batch=8), 1000)]
    assert asked[0] % 2 == 1, "the first prompt is one that this peer cannot answer"

    (ratio,) = measured(monkeypatch, fails, [], engine(0.5, is_text=odd_is_broken))

    assert f"same {CHECK_TOKENS} greedy tokens" == ratio.agreed


def test_a_peer_that_cannot_tell_its_own_answer_is_asked_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    class Picky:
        name, about = "picky", {"version": "1.0"}

        def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
            if question["kind"] == "greedy" and question["prompts"][0][0] % 2:
                raise TrivetError("incomplete UTF-8")
            return {"tokens": list(range(CHECK_TOKENS)), "seconds": 1.5}

        def close(self) -> None:
            pass

    monkeypatch.setattr(comparing, "ours", lambda bits, place: child("trivet", engine(0.5)))
    place = Place(Weights("none", Path()), Path(), 1, None, None, print)
    peers = [Peer("picky", 16, lambda name, place: Picky())]
    (ratio,) = compare(peers, place, vocab_size=1000, pairs=1, questions=[QUESTION], tell=print)

    assert f"same {CHECK_TOKENS} greedy tokens" == ratio.agreed


def test_a_peer_that_dies_is_left_out_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    dies = """
        def answer(question):
            sys.exit("out of memory")
    """

    assert [] == measured(monkeypatch, dies, told)
    assert any("stand-in ended" in words for words in told)


def test_a_child_that_never_becomes_ready_says_why() -> None:
    with pytest.raises(TrivetError) as raised:
        Child("broken", [sys.executable, "-c", "raise SystemExit('no such model')"], {})

    assert "broken ended" in raised.value.message
    assert "no such model" in str(raised.value.hint)


def test_rows_keep_their_circumstances_and_never_mix_with_others(tmp_path: Path) -> None:
    facts = read_facts()
    circumstances = stamp(None, facts, open_device("cpu", facts, 1), "scalar")
    file = tmp_path / "rows.csv"
    append(file, [{"question": "q", "ratio": 2.0}], circumstances)
    append(file, [{"question": "r", "ratio": 3.0}], circumstances)
    rows = list(csv.DictReader(file.open()))

    assert ["q", "r"] == [row["question"] for row in rows]
    assert {"scalar"} == {row["target"] for row in rows}
    with pytest.raises(TrivetError, match="columns"):
        append(file, [{"question": "q"}], circumstances)


def test_the_picture_is_well_formed_and_names_every_peer() -> None:
    values = {"pairs": 5, "ours": 90.0, "theirs": 60.0, "ratio": 1.5, "low": 1.4, "high": 1.6, "bits": 16,
              "read_bytes_per_s": 1e9, "share_of_bandwidth": 0.9, "flops_per_s": 1e9, "agreed": "",
              "version": ""}  # fmt: skip
    ratios = [Ratio(question="decode", peer=name, **values) for name in ("a < b", "c & d")]  # type: ignore[arg-type]
    texts = [
        each.text for each in ET.fromstring(picture("speed & ease", ratios)).iter("{http://www.w3.org/2000/svg}text")
    ]

    assert {"speed & ease", "decode", "a < b", "c & d"} <= set(texts)


def small_llama(path: Path, num_layers: int = 1) -> Path:
    """Layers of random numbers, as llama.cpp stores them."""
    hidden, inner, kv = 64, 128, 32
    layer = {"attn_norm": (hidden,), "attn_q": (hidden, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden),
             "attn_output": (hidden, hidden), "ffn_norm": (hidden,), "ffn_gate": (inner, hidden),
             "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}  # fmt: skip
    shapes = {"token_embd": (96, hidden), "output_norm": (hidden,)}
    shapes |= {f"blk.{i}.{name}": shape for i in range(num_layers) for name, shape in layer.items()}
    rng = np.random.default_rng(0)
    writer = gguf_writer(path, block_count=num_layers)
    add_tokenizer(writer)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape, np.float32))
    finish(writer)
    return path


FORMS: tuple[Form, ...] = ("hf", "f16.gguf", "q8_0.gguf")


def test_every_form_of_the_weights_holds_the_same_numbers_and_tokenizer(tmp_path: Path) -> None:
    weights = weights_of(small_llama(tmp_path / "small.gguf"), tmp_path, ignore)
    wanted = open_checkpoint(weights.form("bf16.gguf", ignore))
    for form, worst in zip(FORMS, (0.0, 1e-6, 0.02), strict=True):
        found = open_checkpoint(weights.form(form, ignore))
        assert wanted.tokenizer.tokenizer == found.tokenizer.tokenizer
        assert wanted.config["rope_theta"] == found.config["rope_theta"]
        assert set(wanted.tensors) == set(found.tensors)
        for name in wanted.tensors:
            assert values(wanted, name) == pytest.approx(values(found, name), rel=0, abs=worst)


def ignore(words: str) -> None:
    """What is told of progress."""


def values(checkpoint: Checkpoint, name: str) -> np.ndarray:
    rows, dtype = checkpoint.read_rows(name, 0, checkpoint.tensors[name].shape[0])
    return cast(rows, dtype, "float32")


def test_a_form_is_written_once_when_it_is_asked_for_and_again_where_it_was_interrupted(tmp_path: Path) -> None:
    source, told = small_llama(tmp_path / "small.gguf"), list[str]()
    weights = weights_of(source, tmp_path, told.append)
    (weights.folder / "hf.unfinished").mkdir()
    weights.form("hf", told.append)
    weights_of(source, tmp_path, told.append).form("hf", told.append)

    assert {"bf16.gguf", "hf"} == {each.name for each in weights.folder.iterdir()}
    assert [f"writing {weights.folder / name}" for name in ("bf16.gguf", "hf")] == told


def test_the_first_layers_of_a_file_are_those_of_the_whole_without_the_rest(tmp_path: Path) -> None:
    source, path = small_llama(tmp_path / "small.gguf", num_layers=3), tmp_path / "first.gguf"
    first_layers(source, 2, path)
    whole, first = open_checkpoint(source), open_checkpoint(path)

    assert (3, 2) == (whole.config["num_hidden_layers"], first.config["num_hidden_layers"])
    assert {name for name in whole.tensors if not name.startswith("model.layers.2.")} == set(first.tensors)
    for name in first.tensors:
        assert values(whole, name).tobytes() == values(first, name).tobytes()


def test_weights_without_a_tokenizer_for_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrivetError, match="a GGUF file was wanted"):
        weights_of(FIXTURES / "llama", tmp_path, ignore)


def test_a_worker_times_decoding_without_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def answer(prompts: list[list[int]], new: int) -> list[list[int]]:
        nonlocal now_s
        now_s += 100 * len(prompts) + new
        return [list(range(new)) for _ in prompts]

    monkeypatch.setattr(worker.time, "perf_counter", lambda: now_s)
    asked = {"prompts": [[5], [6]], "new": 3}

    assert {"seconds": 3} == worker.reply(answer, {"kind": "decode", **asked})
    assert {"seconds": 201} == worker.reply(answer, {"kind": "prefill", "prompts": [[5], [6]]})
    assert {"tokens": [0, 1, 2]} == worker.reply(answer, {"kind": "greedy", **asked})


def test_a_worker_runs_the_engine_that_it_is_told_without_this_project(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(
        textwrap.dedent("""
        import sys
        assert not any(name.startswith("trivet") for name in sys.modules)
        def start(word):
            return word, lambda prompts, new: [prompt * new for prompt in prompts]
    """)
    )
    command = [sys.executable, worker.__file__, "echo", "of one word"]
    with Child("worker", command, {"PYTHONPATH": str(tmp_path)}) as echo:
        assert {"ready": True, "version": "of one word"} == echo.about
        assert {"tokens": [7, 7]} == echo.ask({"kind": "greedy", "prompts": [[7]], "new": 2})
