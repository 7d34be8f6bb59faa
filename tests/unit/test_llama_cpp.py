"""llama.cpp and its fork, with stand-ins for their programs: scripts that refuse the words which the real ones do."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trivet.base.errors import TrivetError
from trivet.serve.bench.peers.ik_llama_cpp import IkLlamaCpp
from trivet.serve.bench.peers.llama_cpp import LlamaCpp

PROGRAM = """#!{python} -SE
import json, pathlib, sys
known, words, asked = {known!r}, sys.argv[1:], {{}}
while words:
    word = words.pop(0)
    if word not in known:
        sys.exit("loading\\nerror: unknown argument: " + word)
    asked[word] = words.pop(0) if known[word] else True
pathlib.Path({asked!r}).write_text(json.dumps(asked))
"""
# It loads when it is asked first, then answers what it is told to, once.
SERVER = """
import http.server
if "--version" in asked:
    print("version: 9 (abc)\\nbuilt for this machine", file=sys.stderr)
    sys.exit()
class Handler(http.server.BaseHTTPRequestHandler):
    num_asked = 0
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Handler.num_asked += 1
        status = 503 if Handler.num_asked == 1 else {status}
        pathlib.Path({posted!r}).write_text(json.dumps([self.path, body]))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps({answer!r}).encode())
    def log_message(self, *words):
        print("asked", file=sys.stderr)
http.server.HTTPServer(("127.0.0.1", int(asked["--port"])), Handler).serve_forever()
"""
BENCH = 'print(json.dumps([{"n_prompt": 0, "avg_ts": 50.0}]))'
BATCHED = {"-m": 1, "-t": 1, "-npp": 1, "-ntg": 1, "-npl": 1, "-c": 1, "-b": 1, "--output-format": 1}
SERVES = {"-m": 1, "-t": 1, "--port": 1, "--version": 0}


@dataclass(frozen=True)
class Fork:
    """What its programs know (1: with a value), print and answer; and what they are asked beside what both are."""

    engine: type[LlamaCpp]
    bench: Mapping[str, int]
    batched: Mapping[str, int]
    serves: Mapping[str, int]
    prints: str
    answer: dict[str, Any]
    best: dict[str, Any]  # words of each program
    best_bench: dict[str, str]
    decode: dict[str, str]
    posted: list[Any]


LLAMA = Fork(
    LlamaCpp,
    bench={"-m": 1, "-t": 1, "-p": 1, "-n": 1, "-d": 1, "-r": 1, "-o": 1},
    batched=BATCHED,
    serves=SERVES,
    prints="""print('main: n_kv_max = 48'); print(json.dumps({"pp": 4, "t_pp": 0.5, "t_tg": 1.908}))""",
    answer={"content": "ab", "tokens": [5, 6]},
    best={},
    best_bench={},
    decode={"-p": "0", "-n": "16", "-d": "4"},
    posted=["/completion", {"prompt": [1, 2, 3, 4], "n_predict": 2, "temperature": 0, "return_tokens": True,
                            "ignore_eos": True}],
)  # fmt: skip
TABLE = """
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|     4 |     16 |    3 |     60 |    7.153 |   572.59 |    1.908 |   268.39 |    9.061 |   508.55 |
"""
IK = Fork(
    IkLlamaCpp,
    bench={"-m": 1, "-t": 1, "-p": 1, "-n": 1, "-gp": 1, "-r": 1, "-o": 1, "-rtr": 1},
    batched={**BATCHED, "-rtr": 0},
    serves={**SERVES, "-rtr": 0},
    prints=f"print({TABLE!r}, file=sys.stderr); pathlib.Path('llama.log').write_text('a table')",
    answer={"choices": [{"text": "ab", "logprobs": {"content": [{"id": 5, "token": "a"}, {"id": 6, "token": "b"}]}}]},
    best={"-rtr": True},
    best_bench={"-rtr": "1"},
    decode={"-p": "0", "-n": "0", "-gp": "4,16"},
    posted=["/v1/completions", {"prompt": [1, 2, 3, 4], "max_tokens": 2, "temperature": 0, "logprobs": 1,
                                "ignore_eos": True}],
)  # fmt: skip
PROMPT = [1, 2, 3, 4]
both_forks = pytest.mark.parametrize("fork", [LLAMA, IK], ids=["llama.cpp", "ik_llama.cpp"])


class Programs:
    """Those of a fork in a folder, and what they were asked."""

    def __init__(self, folder: Path, fork: Fork) -> None:
        self.folder, self._fork = folder, fork
        self.write("llama-bench", fork.bench, BENCH)
        self.write("llama-batched-bench", fork.batched, fork.prints)
        self.serve(200)

    def serve(self, status: int) -> None:
        body = SERVER.format(posted=str(self.folder / "posted"), answer=self._fork.answer, status=status)
        self.write("llama-server", self._fork.serves, body)

    def write(self, name: str, known: Mapping[str, int], body: str) -> None:
        head = PROGRAM.format(python=sys.executable, known=dict(known), asked=str(self.folder / f"{name}.asked"))
        (self.folder / name).write_text(head + body)
        (self.folder / name).chmod(0o755)

    def engine(self) -> LlamaCpp:
        return self._fork.engine("theirs", self.folder, self.folder / "weights.gguf", 2)

    def asked(self, name: str) -> dict[str, Any]:
        """Without what every program is asked."""
        words = json.loads((self.folder / f"{name}.asked").read_text())
        assert (str(self.folder / "weights.gguf"), "2") == (words.pop("-m"), words.pop("-t"))
        return dict(words)


@pytest.fixture
def programs(tmp_path: Path, fork: Fork) -> Programs:
    return Programs(tmp_path, fork)


@both_forks
def test_prefill_is_a_prompt_without_an_answer_and_its_speed_is_read(programs: Programs, fork: Fork) -> None:
    engine = programs.engine()

    assert "version: 9 (abc)" == engine.about["version"]
    assert {"seconds": 4 / 50.0} == engine.ask({"kind": "prefill", "prompts": [PROMPT]})
    assert {"-p": "4", "-n": "0", "-r": "1", "-o": "json", **fork.best_bench} == programs.asked("llama-bench")


@both_forks
def test_one_sequence_decodes_behind_a_prompt_that_is_not_timed(programs: Programs, fork: Fork) -> None:
    assert {"seconds": 16 / 50.0} == programs.engine().ask({"kind": "decode", "prompts": [PROMPT], "new": 16})
    assert {**fork.decode, "-r": "1", "-o": "json", **fork.best_bench} == programs.asked("llama-bench")


@both_forks
def test_several_sequences_decode_as_a_batch_with_room_for_all(programs: Programs, fork: Fork) -> None:
    wanted = {"-npp": "4", "-ntg": "16", "-npl": "3", "-c": "60", "-b": "2048", "--output-format": "jsonl"}

    assert {"seconds": 1.908} == programs.engine().ask({"kind": "decode", "prompts": [PROMPT] * 3, "new": 16})
    assert {**wanted, **fork.best} == programs.asked("llama-batched-bench")


@both_forks
def test_a_greedy_answer_is_the_servers_as_soon_as_it_has_loaded(programs: Programs, fork: Fork) -> None:
    assert {"tokens": [5, 6]} == programs.engine().ask({"kind": "greedy", "prompts": [PROMPT], "new": 2})
    assert fork.posted == json.loads((programs.folder / "posted").read_text())
    asked = programs.asked("llama-server")
    assert asked.pop("--port").isdecimal()
    assert fork.best == asked


@both_forks
def test_nothing_is_left_where_programs_were_started_from_however_they_were_named(
    programs: Programs, fork: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = programs.folder / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    engine = fork.engine("theirs", Path(".."), Path("../weights.gguf"), 2)

    assert {"seconds": 1.908} == engine.ask({"kind": "decode", "prompts": [PROMPT] * 3, "new": 16})
    assert [] == list(here.iterdir())


@pytest.mark.parametrize("fork", [LLAMA], ids=["llama.cpp"])
def test_a_server_that_ends_at_once_is_quoted(programs: Programs, fork: Fork) -> None:
    engine = programs.engine()
    programs.write("llama-server", fork.serves, "sys.exit('loading\\nerror: no such model')")
    with pytest.raises(TrivetError, match="did not answer: error: no such model\n") as raised:
        engine.ask({"kind": "greedy", "prompts": [PROMPT], "new": 2})

    assert str(programs.folder) in str(raised.value.hint)


@pytest.mark.parametrize("fork", [LLAMA], ids=["llama.cpp"])
def test_a_server_that_refuses_is_not_asked_for_ever(programs: Programs, fork: Fork) -> None:
    engine = programs.engine()
    programs.serve(400)
    with pytest.raises(TrivetError, match="/completion answered 400: asked\n"):
        engine.ask({"kind": "greedy", "prompts": [PROMPT], "new": 2})


@pytest.mark.parametrize("fork", [LLAMA], ids=["llama.cpp"])
def test_a_program_that_does_not_know_a_word_is_quoted(programs: Programs, fork: Fork) -> None:
    programs.write("llama-bench", IK.bench, BENCH)
    with pytest.raises(TrivetError, match=r"llama-bench .* ended with 1: error: unknown argument: -d\n"):
        programs.engine().ask({"kind": "decode", "prompts": [PROMPT], "new": 16})


@both_forks
def test_a_program_that_prints_something_else_is_told(programs: Programs, fork: Fork) -> None:
    for name, known in (("llama-bench", fork.bench), ("llama-batched-bench", fork.batched)):
        programs.write(name, known, "print('something else')")
    for prompts, name in (([PROMPT], "llama-bench"), ([PROMPT] * 3, "llama-batched-bench")):
        with pytest.raises(TrivetError, match=f"^{name} printed"):
            programs.engine().ask({"kind": "decode", "prompts": prompts, "new": 16})


def test_a_folder_without_programs_is_told_what_to_build(tmp_path: Path) -> None:
    with pytest.raises(TrivetError, match="No such file") as raised:
        LlamaCpp("theirs", tmp_path, tmp_path / "weights.gguf", 2)

    assert f"into {tmp_path}" in str(raised.value.hint)
