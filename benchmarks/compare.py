"""How fast beside llama.cpp, on the same weights and cores? Both in turn (A, B, A, B) in one run, each pair a ratio.

    python benchmarks/compare.py --llama-bench path/to/llama-bench --gguf model-f16.gguf [MODEL]

The GGUF has MODEL's weights in 16 bits (llama-quantize makes it of another). The model stays loaded here between the
pairs and its threads sleep; llama-bench loads for each run and times only the steps, after a warm-up of its own.
"""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click

from trivet.base.errors import TrivetError
from trivet.base.settings import read_settings
from trivet.driver.readers.host import read_facts
from trivet.framework.graph.plan import Batch, BoundPlan
from trivet.framework.model.loader import LoadedModel, load
from trivet.serve.bench.run import default_model
from trivet.serve.bench.stamp import stamp
from trivet.serve.bench.steps import decode_steps, own_slots, prefill_steps, seconds_of

RESULTS = Path(__file__).parent / "results" / "compare.csv"
_DECODED = 64

# A question: its name, llama-bench's words for it, and our steps.
Question = tuple[str, tuple[str, ...], Callable[[BoundPlan], list[Batch]]]
QUESTIONS: tuple[Question, ...] = (
    (
        f"decode, {_DECODED} tokens",
        ("-p", "0", "-n", str(_DECODED)),
        lambda plan: decode_steps(plan, [0], _DECODED, own_slots(plan, 1, _DECODED)),
    ),
    *(
        (
            f"prefill, {count} tokens",
            ("-p", str(count), "-n", "0"),
            lambda plan, count=count: prefill_steps(plan, count, 512, own_slots(plan, 1, count)),
        )
        for count in (512, 2048)
    ),
)


@click.command()
@click.argument("model", required=False)
@click.option("--llama-bench", "binary", required=True, help="The program, built for this machine")
@click.option("--gguf", required=True, type=click.Path(exists=True), help="The same weights in 16 bits")
@click.option("--pairs", type=click.IntRange(5), default=5, show_default=True)
def compare(model: str | None, binary: str, gguf: str, pairs: int) -> None:
    """Measure in pairs, print the ratios, and append the rows to results/compare.csv."""
    settings = read_settings()
    loaded = load(model or default_model(settings.cache_dir), max_context=4096, settings=settings)
    circumstances = asdict(stamp(loaded.package, read_facts(), loaded.device, loaded.plan.target))
    rows = []
    for name, words, steps in QUESTIONS:
        ours, theirs, build = _in_turn(loaded, steps(loaded.plan), binary, gguf, words, pairs)
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        row = {
            "question": name, "ours": median(ours), "peer": median(theirs), "ratio": median(ratios),
            "ratio_low": min(ratios), "ratio_high": max(ratios), "pairs": pairs, "peer_name": f"llama.cpp {build}",
            "peer_weights": Path(gguf).name, **circumstances,
        }  # fmt: skip
        rows.append(row)
        click.echo(f"{name:<22} {row['ours']:8.1f} tokens/s, llama.cpp {row['peer']:8.1f}: {row['ratio']:.2f}×"
                   f" ({row['ratio_low']:.2f} … {row['ratio_high']:.2f})")  # fmt: skip
    _append(rows)


def _in_turn(
    loaded: LoadedModel, steps: Sequence[Batch], binary: str, gguf: str, words: Sequence[str], pairs: int
) -> tuple[list[float], list[float], str]:
    """Tokens per second of each, pair by pair, and the peer's build."""
    num_tokens = sum(len(step.tokens) for step in steps)
    seconds_of(loaded.plan, steps)  # warm, as llama-bench does
    ours, theirs, build = [], [], ""
    for _ in range(pairs):
        ours.append(num_tokens / seconds_of(loaded.plan, steps))
        answer = _peer(binary, gguf, len(loaded.device.cpus), words)
        theirs.append(float(answer["avg_ts"]))
        build = str(answer["build_commit"])
    return ours, theirs, build


def _peer(binary: str, gguf: str, num_threads: int, words: Sequence[str]) -> dict[str, Any]:
    command = [binary, "-m", gguf, "-t", str(num_threads), "-r", "1", "-o", "json", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        (answer,) = json.loads(done.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise TrivetError(
            f"{' '.join(command)}: {error}", "give a llama-bench of this machine with --llama-bench"
        ) from None
    return dict(answer)


def _append(rows: Sequence[dict[str, Any]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", newline="") as opened:
        writer = csv.DictWriter(opened, list(rows[0]))
        if opened.tell() == 0:
            writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    compare()
