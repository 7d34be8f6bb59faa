"""How long from the start of a process to its first token, beside others? In turn (A, B, …, A, B, …), cold and warm.

    python benchmarks/first_token.py [--model FILE.gguf] [--rounds 7] [--llama-cpp FOLDER] [--billion]

Everybody gets the same numbers in the form that is theirs (a package, a Hugging Face folder, a GGUF file), the same
prompt as text and as many threads, and is done when the first greedy token is written. The clock starts before the
process does, so imports count. Cold: the page cache has dropped the model's files, and not the programs; warm: they
were read just now. A peer whose token is not ours is told of, and its rows say so.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from trivet._native import targets
from trivet.base.errors import TrivetError
from trivet.base.settings import read_settings
from trivet.driver.devices.table import open_device
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.model.convert import convert
from trivet.framework.model.demo_model import fetch_demo_model
from trivet.serve.bench.load import cached_share, drop_from_page_cache
from trivet.serve.bench.peers.environments import TRANSFORMERS, clean_environment, python_of
from trivet.serve.bench.peers.free_port import free_port
from trivet.serve.bench.peers.llama_cpp import post
from trivet.serve.bench.peers.weights import prepare, random_llama
from trivet.serve.bench.rows import append_rows, check_csv
from trivet.serve.bench.stamp import stamp

RESULTS = Path(__file__).parent / "results" / "first_token.csv"
PROMPT = "The capital of France is"
OURS = "trivet"
_POLL_S = 0.002

_TRANSFORMERS = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, prompt, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
with torch.inference_mode():
    logits = model(tokenizer(prompt, return_tensors="pt").input_ids, logits_to_keep=1).logits
print(tokenizer.decode(logits[0, -1].argmax()), flush=True)
"""

COLUMNS = (
    "model", "way", "files", "round", "seconds", "token", "is_ours", "size_bytes", "cached_share", "cpu", "num_threads",
    "kernel", "governor", "huge_pages", "trivet", "commit", "is_dirty", "date",
)  # fmt: skip

First = Callable[[], tuple[float, str]]  # seconds to the first token from the start of a process, and its text


@dataclass(frozen=True)
class Way:
    name: str
    files: list[Path]  # of the model, as it reads it
    first: First


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), help="A GGUF file  [default: the demo's]")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
@click.option("--threads", type=click.IntRange(1), help="Of everybody  [default: as trivet chooses]")
@click.option("--llama-cpp", type=click.Path(exists=True, path_type=Path), help="The folder of its llama-server")
@click.option("--billion", is_flag=True, help="A Llama of 1.1 billion random parameters: more bytes for each import")
def first_token(model: Path | None, rounds: int, threads: int | None, llama_cpp: Path | None, billion: bool) -> None:
    """Measure in turn, print medians and ratios, and append a row for each start to results/first_token.csv."""
    check_csv(RESULTS, COLUMNS)
    settings, facts = read_settings(), read_placement_facts()
    device = open_device("cpu", facts, threads)
    peers = settings.cache_dir / "peers"
    source = model or fetch_demo_model(settings.cache_dir)
    if billion:
        random_llama(source, peers / "random-1b.gguf", _tell)
        source = peers / "random-1b.gguf"
    place = peers / f"{source.stem}-weights"
    prepare(source, place, _tell)
    package = convert(place / "hf", place / "package").package.path
    ways = [
        Way(OURS, _files(package), lambda: ours(package, len(device.cpus))),
        transformers(place / "hf", peers, len(device.cpus)),
    ]
    if llama_cpp is not None:
        ways.append(llama_server(llama_cpp / "llama-server", place / "bf16.gguf", len(device.cpus)))
    taken = asdict(stamp(None, facts, device, targets()[0]))
    rows = list(measure(source.stem, ways, rounds, taken))
    append_rows(RESULTS, rows, COLUMNS)
    for files in ("cold", "warm"):
        click.echo(f"\n{source.stem}, {files}")
        for line in summary([row for row in rows if row["files"] == files]):
            click.echo(line)


def measure(model: str, ways: Sequence[Way], rounds: int, taken: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each start. The first of each way is not kept: programs and libraries come into the page cache."""
    for way in ways:
        way.first()
    for number in range(rounds):
        for files in ("cold", "warm"):
            own = ""
            for way in ways:
                if files == "cold":
                    drop_from_page_cache(way.files)
                else:
                    way.first()
                share = cached_share(way.files)
                seconds, token = way.first()
                own = token if way.name == OURS else own
                _tell(f"round {number + 1}, {files}: {way.name} {seconds:.2f} s, {token!r}")
                yield {**{column: taken.get(column) for column in COLUMNS}, "model": model, "way": way.name,
                       "files": files, "round": number, "seconds": round(seconds, 4), "token": token,
                       "is_ours": token == own, "size_bytes": sum(file.stat().st_size for file in way.files),
                       "cached_share": share}  # fmt: skip


def ours(package: Path, threads: int) -> tuple[float, str]:
    program = "from trivet.cli import main; main()"
    options = ["--raw", "--max-tokens", "1", "--threads", str(threads)]
    return _first_line([sys.executable, "-c", program, "generate", str(package), PROMPT, *options])


def transformers(folder: Path, peers: Path, threads: int) -> Way:
    python = python_of(TRANSFORMERS, peers, _tell)
    command = [str(python), "-c", _TRANSFORMERS, str(folder), PROMPT, str(threads)]
    environ = clean_environment({"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"})
    return Way("transformers", _files(folder), lambda: _first_line(command, environ))


def llama_server(program: Path, weights: Path, threads: int) -> Way:
    def first() -> tuple[float, str]:
        port = free_port()
        body = {"prompt": PROMPT, "n_predict": 1, "temperature": 0}
        start = time.perf_counter()
        command = [str(program), "-m", str(weights), "-t", str(threads), "--port", str(port)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                answer = post(f"http://127.0.0.1:{port}/completion", body, server, _POLL_S)
                return time.perf_counter() - start, str(answer["content"]).strip()
            finally:
                server.kill()

    return Way("llama-server", [weights], first)


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each way: its median and spread, and how many times ours that is, round by round."""
    own = {row["round"]: row["seconds"] for row in rows if row["way"] == OURS}
    for way in dict.fromkeys(row["way"] for row in rows):
        of_way = [row for row in rows if row["way"] == way]
        seconds = [row["seconds"] for row in of_way]
        ratios = [row["seconds"] / own[row["round"]] for row in of_way]
        line = f"{way:<14} {median(seconds):6.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})"
        if way != OURS:
            line += f"  {median(ratios):5.2f}× ours  ({min(ratios):.2f} to {max(ratios):.2f})"
        other = {row["token"] for row in of_way if not row["is_ours"]}
        yield line + (f"  another token: {', '.join(map(repr, other))}" if other else "")


def _first_line(command: Sequence[str], environ: dict[str, str] | None = None) -> tuple[float, str]:
    """The time is that of the first byte; the text, all that the process wrote. TrivetError with its words."""
    start = time.perf_counter()
    # Unbuffered: what the first read takes besides its byte, `communicate` would not see.
    with subprocess.Popen(command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - start
        rest, errors = process.communicate()
    if process.returncode != 0 or not first:
        raise TrivetError(f"{' '.join(command[:1])} failed: {errors.decode(errors='replace').strip()[-2000:]}")
    return seconds, (first + rest).decode().strip()


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.is_file())


def _tell(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    first_token()
