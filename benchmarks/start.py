"""How long is it from the start of a process to its first token, and how much memory does it take at most?

    python benchmarks/start.py [MODEL.gguf] [--llama-cpp FOLDER] [--transformers] [--billion] [--rounds 7]

Everybody gets the same numbers in the form that is theirs (a package, a GGUF file, a Hugging Face folder), the same
prompt of about 128 tokens and as many threads, in turn (A, B, …, A, B, …). A server is left alone until it says on
stderr that it serves, and is then asked over HTTP, again every 5 ms while it refuses: who asks earlier slows down what
is measured. What is no server writes its token to stdout. The clock runs from exec to the token. Cold: the page cache
has dropped the model's files, and not the programs; warm: they were read just now. Free memory was touched
(`trivet.serve.bench.free_memory`). Memory is the process's peak (VmHWM), after the first token, and of a server after
32 answers at once, beside what weights and KV cache must take. A peer whose token is not ours is told of, and its row
says so. Rows go to results/start.csv.
"""

from __future__ import annotations

import http.client
import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from threading import Thread
from typing import IO, Any

import click

from trivet.base.errors import TrivetError
from trivet.base.settings import read_settings
from trivet.base.units import MIB, format_bytes
from trivet.driver.devices.table import open_device
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.graph.cost import stream_bytes
from trivet.framework.memory.slots import lay_out
from trivet.framework.model.demo_model import fetch_demo_model
from trivet.framework.model.loader import open_model
from trivet.serve.bench.free_memory import touch_free_memory
from trivet.serve.bench.load import cached_share, drop_from_page_cache, read_through
from trivet.serve.bench.peers.environments import TRANSFORMERS, clean_environment, python_of
from trivet.serve.bench.peers.free_port import free_port
from trivet.serve.bench.peers.weights import random_weights, weights_of
from trivet.serve.bench.rows import append_rows, check_csv
from trivet.serve.bench.stamp import Stamp, stamp

RESULTS = Path(__file__).parent / "results" / "start.csv"
OURS = "trivet"
PROMPT = "The quick brown fox jumps over a lazy dog and runs away from here to there while " * 7
_BATCH, _NEW = 32, 32
_RETRY_S, _TIMEOUT_S = 0.005, 120.0
_COLUMNS = (
    "way", "files", "first_token_s", "low", "high", "repeats", "ratio", "start_bytes", "load_bytes", "weight_bytes",
    "kv_bytes", "cached_share", "token", "is_ours", *Stamp.__dataclass_fields__,
)  # fmt: skip

_TRANSFORMERS = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, threads, prompt = sys.argv[1:]
torch.set_num_threads(int(threads))
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
with torch.inference_mode():
    logits = model(tokenizer(prompt, return_tensors="pt").input_ids, logits_to_keep=1).logits
print(tokenizer.decode(logits[0, -1].argmax()), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Run:
    seconds: float
    token: str
    start_bytes: int
    load_bytes: int | None  # None of what is no server


@dataclass(frozen=True)
class Way:
    name: str
    files: tuple[Path, ...]  # of the model, as it reads it
    start: Callable[[], Run]  # once, and its end; raises TrivetError when it dies or does not answer


@dataclass(frozen=True)
class Server:
    """A command that serves at a port, what it says once it does, and how it is asked for text."""

    name: str
    command: tuple[str, ...]  # the port is appended
    says: bytes
    path: str
    limit: str  # the field that bounds the answer's tokens
    text: Callable[[Any], str]  # in the answer

    def body(self, num_tokens: int, prompt: str) -> bytes:
        # llama-server takes no notice of the model's name.
        return json.dumps({"model": OURS, "prompt": prompt, "temperature": 0, self.limit: num_tokens}).encode()


def serve(server: Server) -> Run:
    """One start of the server, and its end."""
    port = free_port()
    start = time.perf_counter()
    with subprocess.Popen([*server.command, str(port)], bufsize=0, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          env=_environment()) as process:  # fmt: skip
        assert process.stderr is not None
        try:
            wait_until_said(server, process.stderr)
            # What it goes on to say is read to its end, or it would wait for that.
            Thread(target=process.stderr.read).start()
            while (token := ask(server, port, 1, PROMPT)) is None:
                if time.perf_counter() - start > _TIMEOUT_S:
                    raise TrivetError(f"{server.name} gave no token: {' '.join(server.command)} {port}")
                time.sleep(_RETRY_S)
            seconds, start_bytes = time.perf_counter() - start, peak_bytes(process.pid)
            with ThreadPoolExecutor(_BATCH) as clients:
                asked = clients.map(lambda i: ask(server, port, _NEW, f"{i} {PROMPT}"), range(_BATCH))
                if None in asked:
                    raise TrivetError(f"{server.name} refused one of {_BATCH} requests at once")
            return Run(seconds, token, start_bytes, peak_bytes(process.pid))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def wait_until_said(server: Server, stream: IO[bytes]) -> None:
    """Read the server's stderr until it says that it serves. Raises TrivetError where it ends or does not."""
    said = b""
    while server.says not in said:
        is_there, _, _ = select.select([stream], [], [], _TIMEOUT_S)
        said += (more := stream.read(1 << 16) if is_there else b"")
        if not more:
            happened = "ended before it served" if is_there else f"did not say {server.says!r}"
            raise TrivetError(f"{server.name} {happened}: {said.decode(errors='replace')[-600:]}")


def ask(server: Server, port: int, num_tokens: int, prompt: str) -> str | None:
    """The answer; None where it does not take requests yet. Raises TrivetError for another refusal."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", server.path, server.body(num_tokens, prompt), {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
    except OSError:
        return None
    finally:
        connection.close()
    if response.status not in (200, 503):
        raise TrivetError(f"{server.name} answers {response.status}: {answer.decode(errors='replace')}")
    return server.text(json.loads(answer)).strip() if response.status == 200 else None


def write(name: str, command: Sequence[str], environ: Mapping[str, str]) -> Run:
    """One run of a program that writes its token to stdout, and ends when its stdin does."""
    start = time.perf_counter()
    with subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=_environment(environ)) as process:  # fmt: skip
        assert process.stdout is not None
        token = process.stdout.read(1 << 16)
        seconds = time.perf_counter() - start
        if not token:
            raise TrivetError(f"{name} wrote no token: {process.communicate()[1].decode(errors='replace')[-600:]}")
        peak = peak_bytes(process.pid)
        process.communicate()
    return Run(seconds, token.decode().strip(), peak, None)


def peak_bytes(process_id: int) -> int:
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of this process's, but that compiled modules may be kept, as a service's are."""
    return clean_environment({"PYTHONDONTWRITEBYTECODE": "", **(extra or {})})


def trivet(package: Path, threads: int) -> Way:
    program = "from trivet.cli import main; main()"
    words = (sys.executable, "-c", program, "serve", str(package), "--served-name", OURS)
    words += ("--threads", str(threads), "--port")
    server = Server(OURS, words, b"serving ", "/v1/completions", "max_tokens", lambda said: said["choices"][0]["text"])
    return Way(OURS, _files(package), lambda: serve(server))


def llama_server(programs: Path, weights: Path, threads: int) -> Way:
    words = (str(programs / "llama-server"), "-m", str(weights), "-t", str(threads), "--port")
    server = Server("llama-server", words, b"listening on http", "/completion", "n_predict",
                    lambda said: said["content"])  # fmt: skip
    return Way(server.name, (weights,), lambda: serve(server))


def transformers(python: Path, folder: Path, threads: int) -> Way:
    command = [str(python), "-c", _TRANSFORMERS, str(folder), str(threads), PROMPT]
    environ = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    return Way("transformers", _files(folder), lambda: write("transformers", command, environ))


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@click.option("--llama-cpp", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Has llama-server")
@click.option("--transformers", "with_transformers", is_flag=True, help="In an environment of its own")
@click.option("--billion", is_flag=True, help="A Llama of 1.1 billion random parameters: more bytes for each import")
@click.option("--threads", type=click.IntRange(1), help="Of everybody  [default: as trivet chooses]")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
def start(
    model: Path | None, llama_cpp: Path | None, with_transformers: bool, billion: bool, threads: int | None, rounds: int
) -> None:
    """Measure in turn, print, and append a row for each way, cold and warm, to results/start.csv."""
    check_csv(RESULTS, _COLUMNS)
    settings, facts = read_settings(), read_placement_facts()
    device = open_device("cpu", facts, threads)
    peers, threads = settings.cache_dir / "peers", len(device.cpus)
    source = model or fetch_demo_model(settings.cache_dir)
    published = (random_weights if billion else weights_of)(source, peers, _tell)
    checkpoint = published.form("hf", _tell)
    # Not kept: what this process maps the page cache does not drop.
    package = open_model(checkpoint, verify=False, settings=settings)
    slots = lay_out(stream_bytes(package.graph))
    known = {"weight_bytes": package.weight_bytes, "kv_bytes": slots.pool_bytes(_BATCH * slots.slots_for(128 + _NEW))}
    circumstances = {**asdict(stamp(package, facts, device, settings.cpu_target or "best")), "model": published.name}
    folder = package.path
    del package
    ways = [trivet(folder, threads)]
    if llama_cpp is not None:
        ways.append(llama_server(llama_cpp, published.form("bf16.gguf", _tell), threads))
    if with_transformers:
        ways.append(transformers(python_of(TRANSFORMERS, peers, _tell), checkpoint, threads))
    for files, runs in measure(ways, rounds).items():
        rows = [{**circumstances, **known, **row, "files": files} for row in judge(runs)]
        append_rows(RESULTS, rows, _COLUMNS)
        click.echo(f"{published.name}, files {files}")
        for row in rows:
            click.echo(_line(row))


@dataclass(frozen=True)
class Measured:
    """All runs of a way with the files cold or warm, and the largest share of them that the page cache had before."""

    name: str
    runs: list[Run]
    cached: float | None


def measure(ways: Sequence[Way], rounds: int) -> dict[str, list[Measured]]:
    """By the state of the files. Programs and libraries come into the page cache by a run that does not count."""
    for way in ways:
        way.start()
    found = {files: [Measured(way.name, [], None) for way in ways] for files in ("cold", "warm")}
    for number in range(rounds):
        for files, measured in found.items():
            for i, way in enumerate(ways):
                # Cold, ours reads past the page cache: what it read is not there.
                (drop_from_page_cache if files == "cold" else read_through)(list(way.files))
                touch_free_memory()
                share = cached_share(list(way.files))
                run = way.start()
                _tell(f"round {number + 1}, {files}: {way.name} {run.seconds:.3f} s, {run.token!r}")
                before = measured[i]
                measured[i] = Measured(way.name, [*before.runs, run], max(share or 0.0, before.cached or 0.0))
    return found


def judge(measured: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """A row for each way. Its ratio is the median over the rounds of its time divided by ours; ours is the first."""
    ours = measured[0].runs
    for way in measured:
        times, loads = [run.seconds for run in way.runs], [run.load_bytes for run in way.runs]
        yield {
            "way": way.name, "first_token_s": median(times), "low": min(times), "high": max(times),
            "repeats": len(times),
            "ratio": median(run.seconds / own.seconds for run, own in zip(way.runs, ours, strict=True)),
            "start_bytes": median(run.start_bytes for run in way.runs),
            "load_bytes": None if None in loads else median(each or 0 for each in loads),
            "cached_share": way.cached, "token": way.runs[0].token,
            "is_ours": {run.token for run in way.runs} == {ours[0].token},
        }  # fmt: skip


def _line(row: Mapping[str, Any]) -> str:
    said = (f"  {row['way']:<13} first token {row['first_token_s']:.3f} s ({row['low']:.3f} to {row['high']:.3f}), "
            f"{row['ratio']:.2f}× ours, peak {format_bytes(int(row['start_bytes']))}")  # fmt: skip
    if row["load_bytes"] is not None:
        above = row["load_bytes"] - row["weight_bytes"] - row["kv_bytes"]
        said += f", {above / MIB:.0f} MiB above weights and KV cache with {_BATCH} answers"
    return said if row["is_ours"] else f"{said}; another token: {row['token']!r}"


def _files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(file for file in folder.iterdir() if file.is_file()))


def _tell(words: str) -> None:
    click.echo(words, err=True)


if __name__ == "__main__":
    start()
