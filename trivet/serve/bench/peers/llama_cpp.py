"""llama.cpp, and forks with its programs: each question is a run of the program made for it.

llama-bench for prefill and one sequence, llama-batched-bench for more, llama-server for what it answers.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trivet.base.errors import TrivetError
from trivet.serve.bench.peers.child import Answer
from trivet.serve.bench.peers.free_port import free_port

_TIMEOUT_S = 600.0


class LlamaCpp:
    """Answers as a child does. `words` go to every program, such as a fork's own switches."""

    def __init__(self, name: str, programs: Path, weights: Path, threads: int, words: Sequence[str] = ()) -> None:
        self.name = name
        self.about: Answer = {"version": _version(programs)}
        self._programs, self._weights = programs, weights
        self._words = ["-m", str(weights), "-t", str(threads), *words]

    def ask(self, question: Mapping[str, Any]) -> Answer:
        prompts, new = question["prompts"], question.get("new", 0)
        match question["kind"]:
            case "prefill":
                return {"seconds": self._bench(["-p", str(len(prompts[0])), "-n", "0"], len(prompts[0]))}
            case "decode" if len(prompts) == 1:
                return {"seconds": self._bench(["-p", "0", "-n", str(new), "-d", str(len(prompts[0]))], new)}
            case "decode":
                return {"seconds": self._batched(len(prompts), len(prompts[0]), new)}
            case "greedy":
                return {"tokens": self._greedy(prompts[0], new)}
        raise AssertionError(question["kind"])

    def close(self) -> None:
        """Nothing runs between questions."""

    def _bench(self, words: Sequence[str], num_tokens: int) -> float:
        rows = json.loads(self._run("llama-bench", [*words, "-r", "1", "-o", "json"]))
        return num_tokens / float(rows[0]["avg_ts"])

    def _batched(self, batch: int, prompt: int, new: int) -> float:
        context = batch * (prompt + new)
        words = ["-npp", str(prompt), "-ntg", str(new), "-npl", str(batch), "-c", str(context), "-b", "2048"]
        said = self._run("llama-batched-bench", [*words, "--output-format", "jsonl"])
        (row,) = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        return float(row["t_tg"])

    def _greedy(self, prompt: Sequence[int], new: int) -> list[int]:
        body = {"prompt": list(prompt), "n_predict": new, "temperature": 0, "return_tokens": True, "ignore_eos": True}
        port = free_port()
        command = [str(self._programs / "llama-server"), *self._words, "--port", str(port)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                return list(post(f"http://127.0.0.1:{port}/completion", body, server)["tokens"])
            finally:
                server.kill()

    def _run(self, program: str, words: Sequence[str]) -> str:
        command = [str(self._programs / program), *self._words, *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise TrivetError(f"{self.name}: {' '.join(command)}: {error}", _remedy(self._programs)) from None
        return done.stdout


def post(url: str, body: dict[str, Any], server: subprocess.Popen[bytes], poll_s: float = 0.1) -> dict[str, Any]:
    """The answer, as soon as the server has loaded its model; TrivetError when it ends or is silent."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except (urllib.error.URLError, ConnectionError):  # not listening yet, or 503 while it loads
            time.sleep(poll_s)
    raise TrivetError(f"{server.args!r} did not answer")


def _version(programs: Path) -> str:
    try:
        done = subprocess.run([programs / "llama-server", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise TrivetError(f"{programs}: {error}", _remedy(programs)) from None
    return (done.stdout + done.stderr).strip().splitlines()[0]


def _remedy(programs: Path) -> str:
    return f"build llama-bench, llama-batched-bench and llama-server for this machine into {programs}"
