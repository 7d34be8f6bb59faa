"""llama.cpp: each question is a run of the program made for it.

llama-bench for prefill and one sequence, llama-batched-bench for more, llama-server for what it answers.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from trivet.base.errors import TrivetError
from trivet.serve.bench.peers.child import Answer
from trivet.serve.bench.peers.free_port import free_port

Done = subprocess.CompletedProcess[str]

_TIMEOUT_S = 600.0


class LlamaCpp:
    """Answers as a child does. A fork says in its own words what differs: see `IkLlamaCpp`."""

    def __init__(self, name: str, programs: Path, weights: Path, threads: int) -> None:
        self.name = name
        self.about: Answer = {"version": _version(programs)}
        self._programs = programs.resolve()
        self._words = ["-m", str(weights.resolve()), "-t", str(threads)]

    def ask(self, question: Mapping[str, Any]) -> Answer:
        prompts, new = question["prompts"], question.get("new", 0)
        match question["kind"]:
            case "prefill":
                return {"seconds": self._bench(["-p", str(len(prompts[0])), "-n", "0"], len(prompts[0]))}
            case "decode" if len(prompts) == 1:
                return {"seconds": self._bench(self._decode(len(prompts[0]), new), new)}
            case "decode":
                return {"seconds": self._batched(len(prompts), len(prompts[0]), new)}
            case "greedy":
                return {"tokens": self._tokens(self._serve(*self._greedy(prompts[0], new)))}
        raise AssertionError(question["kind"])

    def close(self) -> None:
        """Nothing runs between questions."""

    def _decode(self, prompt: int, new: int) -> list[str]:
        """llama-bench's words for `new` tokens after a prompt that is not timed."""
        return ["-p", "0", "-n", str(new), "-d", str(prompt)]

    def _seconds(self, done: Done) -> float:
        """Of all decodes, from what llama-batched-bench printed."""
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if len(rows) != 1:
            raise TrivetError(f"llama-batched-bench printed {len(rows)} rows, wanted one")
        return float(rows[0]["t_tg"])

    def _greedy(self, prompt: Sequence[int], new: int) -> tuple[str, dict[str, Any]]:
        """The path and the body of a request whose answer has token ids."""
        body = {"prompt": list(prompt), "n_predict": new, "temperature": 0, "return_tokens": True, "ignore_eos": True}
        return "completion", body

    def _tokens(self, answer: dict[str, Any]) -> list[int]:
        return list(answer["tokens"])

    def _switches(self, program: str) -> list[str]:
        """What the program needs to be at its best."""
        return []

    def _bench(self, words: Sequence[str], num_tokens: int) -> float:
        done = self._run("llama-bench", [*words, "-r", "1", "-o", "json"])
        try:
            return num_tokens / float(json.loads(done.stdout)[0]["avg_ts"])
        except (ValueError, LookupError, ZeroDivisionError):
            raise TrivetError(f"llama-bench printed no row with a speed, but {done.stdout!r}") from None

    def _batched(self, batch: int, prompt: int, new: int) -> float:
        context = batch * (prompt + new)
        words = ["-npp", str(prompt), "-ntg", str(new), "-npl", str(batch), "-c", str(context), "-b", "2048"]
        return self._seconds(self._run("llama-batched-bench", [*words, "--output-format", "jsonl"]))

    def _serve(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        port = free_port()
        with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as said:
            command = [*self._command("llama-server"), "--port", str(port)]
            with subprocess.Popen(command, cwd=scratch, stdout=subprocess.DEVNULL, stderr=said) as server:
                try:
                    return post(f"http://127.0.0.1:{port}/{path}", body, server)
                except TrivetError as error:
                    said.seek(0)
                    last = _last_line(said.read().decode(errors="replace"))
                    raise TrivetError(f"{error}: {last}", _remedy(self._programs)) from None
                finally:
                    server.kill()

    def _run(self, program: str, words: Sequence[str]) -> Done:
        command = [*self._command(program), *words]
        try:
            with tempfile.TemporaryDirectory() as scratch:  # some leave a log where they were started
                done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise TrivetError(f"{' '.join(command)}: {error}", _remedy(self._programs)) from None
        if done.returncode:
            said = _last_line(done.stderr)
            raise TrivetError(f"{' '.join(command)} ended with {done.returncode}: {said}", _remedy(self._programs))
        return done

    def _command(self, program: str) -> list[str]:
        return [str(self._programs / program), *self._words, *self._switches(program)]


def post(url: str, body: dict[str, Any], server: subprocess.Popen[bytes], poll_s: float = 0.1) -> dict[str, Any]:
    """The answer, as soon as the server has loaded its model; TrivetError when it ends, refuses or is silent."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:  # which it says while it loads
                raise TrivetError(f"{url} answered {error.code}") from None
        except OSError:  # not listening yet
            pass
        time.sleep(poll_s)
    raise TrivetError(f"{server.args!r} did not answer")


def _last_line(said: str) -> str:
    return "".join(said.strip().splitlines()[-1:])


def _version(programs: Path) -> str:
    try:
        done = subprocess.run([programs / "llama-server", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise TrivetError(f"{programs}: {error}", _remedy(programs)) from None
    return "".join((done.stdout + done.stderr).strip().splitlines()[:1])


def _remedy(programs: Path) -> str:
    return f"build llama-bench, llama-batched-bench and llama-server for this machine into {programs}"
