"""How long is it from the start of a server to the first token, and how much memory does it take at most?

    python benchmarks/start.py [MODEL] [--llama-cpp FOLDER --gguf FILE]

A server is started, asked for one token after a prompt of about 128 until it gives it, then for 32 answers at once.
Time runs from exec to the token, over HTTP; memory is the process's peak (VmHWM), after the first token and after the
answers, beside what weights and KV cache must take. llama-server, on the same weights, takes turns with ours. Files are
warm. Rows go to results/start.csv.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from trivet.base.errors import TrivetError
from trivet.base.settings import read_settings
from trivet.base.units import MIB, format_bytes
from trivet.driver.devices.table import open_device
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.graph.cost import stream_bytes
from trivet.framework.memory.slots import lay_out
from trivet.framework.model.loader import open_model
from trivet.serve.bench.peers.environments import clean_environment
from trivet.serve.bench.peers.free_port import free_port
from trivet.serve.bench.rows import append_rows
from trivet.serve.bench.run import default_model
from trivet.serve.bench.stamp import stamp

RESULTS = Path(__file__).parent / "results" / "start.csv"
_PROMPT = "The quick brown fox jumps over a lazy dog and runs away from here to there while " * 7
_BATCH, _NEW = 32, 32
_POLL_S, _TIMEOUT_S = 0.002, 120.0


@dataclass(frozen=True)
class Server:
    """A command that serves at a port, and how it is asked for text."""

    name: str
    command: tuple[str, ...]  # the port is appended
    path: str
    fields: Mapping[str, Any]
    limit: str  # the field that bounds the answer's tokens

    def body(self, num_tokens: int, prompt: str) -> bytes:
        return json.dumps({**self.fields, "prompt": prompt, "temperature": 0, self.limit: num_tokens}).encode()


@dataclass(frozen=True)
class Run:
    seconds: float
    start_bytes: int
    load_bytes: int


def measure(server: Server) -> Run:
    """One start of the server, and its end. Raises TrivetError when it dies or does not answer."""
    port = free_port()
    start = time.perf_counter()
    with subprocess.Popen([*server.command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          env=clean_environment({"PYTHONDONTWRITEBYTECODE": ""})) as process:  # fmt: skip
        try:
            while not ask(server, port, 1, _PROMPT):
                if process.poll() is not None or time.perf_counter() - start > _TIMEOUT_S:
                    raise TrivetError(f"{server.name} gave no token: {' '.join(server.command)} {port}")
                time.sleep(_POLL_S)
            seconds, start_bytes = time.perf_counter() - start, peak_bytes(process.pid)
            with ThreadPoolExecutor(_BATCH) as clients:
                asked = clients.map(lambda i: ask(server, port, _NEW, f"{i} {_PROMPT}"), range(_BATCH))
                if not all(asked):
                    raise TrivetError(f"{server.name} refused one of {_BATCH} requests at once")
            return Run(seconds, start_bytes, peak_bytes(process.pid))
        finally:
            process.send_signal(signal.SIGTERM)


def ask(server: Server, port: int, num_tokens: int, prompt: str) -> bool:
    """Did it answer? Not while it does not listen yet, nor while it loads; raises TrivetError for another refusal."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", server.path, server.body(num_tokens, prompt), {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
    except OSError:
        return False
    finally:
        connection.close()
    if response.status not in (200, 503):
        raise TrivetError(f"{server.name} answers {response.status}: {answer.decode(errors='replace')}")
    return response.status == 200


def peak_bytes(process_id: int) -> int:
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@click.command()
@click.argument("model", required=False)
@click.option("--llama-cpp", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Has llama-server")
@click.option("--gguf", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The same weights for it")
@click.option("--pairs", type=click.IntRange(1), default=7, show_default=True)
def start(model: str | None, llama_cpp: Path | None, gguf: Path | None, pairs: int) -> None:
    """Measure, print, and append the rows to results/start.csv."""
    settings = read_settings()
    package = open_model(model or default_model(settings.cache_dir), verify=False, settings=settings)
    facts = read_placement_facts()
    device = open_device("cpu", facts)
    program = "from trivet.cli import main; main()"
    servers = [
        Server("trivet", (sys.executable, "-c", program, "serve", str(package.path), "--served-name", "m", "--port"),
               "/v1/completions", {"model": "m"}, "max_tokens")
    ]  # fmt: skip
    if llama_cpp is not None and gguf is not None:
        words = (str(llama_cpp / "llama-server"), "-m", str(gguf), "-t", str(len(device.cpus)), "--port")
        servers.append(Server("llama-server", words, "/completion", {}, "n_predict"))
    for server in servers:
        measure(server)  # files into the page cache, Python's modules compiled
    runs: dict[str, list[Run]] = {server.name: [] for server in servers}
    for _ in range(pairs):
        for server in servers:
            runs[server.name].append(measure(server))
    slots = lay_out(stream_bytes(package.graph))
    kv_bytes = slots.pool_bytes(_BATCH * slots.slots_for(128 + _NEW))
    circumstances = asdict(stamp(package, facts, device, settings.cpu_target or "best"))
    rows = []
    for name, own in runs.items():
        times = [each.seconds for each in own]
        row = {"server": name, "first_token_s": median(times), "low": min(times), "high": max(times), "repeats": pairs,
               "start_bytes": median(each.start_bytes for each in own),
               "load_bytes": median(each.load_bytes for each in own),
               "weight_bytes": package.weight_bytes, "kv_bytes": kv_bytes}  # fmt: skip
        rows.append({**row, **circumstances})
        above = row["load_bytes"] - package.weight_bytes - kv_bytes
        click.echo(f"{name:<13} first token {row['first_token_s']:.3f} s ({row['low']:.3f} to {row['high']:.3f}), "
                   f"peak {format_bytes(row['start_bytes'])}, with {_BATCH} answers {format_bytes(row['load_bytes'])}: "
                   f"{above / MIB:.0f} MiB above weights and KV cache")  # fmt: skip
    if len(runs) == 2:
        ours, theirs = (median(each.seconds for each in own) for own in runs.values())
        click.echo(f"ratio         {ours / theirs:.2f}")
    append_rows(RESULTS, rows)


if __name__ == "__main__":
    start()
