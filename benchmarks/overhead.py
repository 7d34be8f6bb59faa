"""What is the engine's own share of a step: scheduling, batching, choosing tokens, text, delivery?

    python benchmarks/overhead.py [MODEL] [--batch 32]

Steps of decode through the engine, and through the engine's thread to as many readers of an event loop. The plan's own
time is taken out, and the sampler's told apart. Rows go to results/overhead.csv.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click

from trivet._native import Gate
from trivet.base.dtypes import Array
from trivet.base.settings import read_settings
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import new_request
from trivet.framework.engine.worker import AsyncEngine
from trivet.framework.graph.plan import Batch, Plan
from trivet.framework.model.loader import LoadedModel, load
from trivet.serve.bench.rows import append_rows
from trivet.serve.bench.run import default_model
from trivet.serve.bench.stamp import stamp
from trivet.serve.bench.steps import some_tokens

RESULTS = Path(__file__).parent / "results" / "overhead.csv"
_PROMPT, _STEPS = 128, 24
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0, ignore_eos=True),
    "top-p": SamplingParams(temperature=0.8, top_p=0.95, seed=1, ignore_eos=True),
    "all": SamplingParams(temperature=0.8, top_k=50, top_p=0.95, repetition_penalty=1.1, seed=1, logprobs=1,
                          ignore_eos=True),
}  # fmt: skip


class TimedPlan:
    """A plan that adds up the seconds of its steps and of its sampler."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.limits, self.num_slots, self.slot_tokens = plan.limits, plan.num_slots, plan.slot_tokens
        self.vocab_size = plan.vocab_size
        self.sampler = self
        self.run_s = self.choose_s = 0.0
        self.num_steps = 0

    def run(self, batch: Batch, arriving: Sequence[Gate] = ()) -> Array:
        start = time.perf_counter()
        logits = self._plan.run(batch, arriving)
        self.run_s += time.perf_counter() - start
        self.num_steps += 1
        return logits

    def choose(self, logits: Array, *rows: Sequence[Any]) -> Any:
        start = time.perf_counter()
        chosen = self._plan.sampler.choose(logits, *rows)
        self.choose_s += time.perf_counter() - start
        return chosen


def through_engine(loaded: LoadedModel, plan: TimedPlan, params: SamplingParams, batch: int) -> float:
    """Seconds of `_STEPS` steps, each a token for every sequence."""
    engine = Engine(plan, loaded.tokenizer)  # type: ignore[arg-type]  # it is a Plan in all that the engine uses
    prompt = some_tokens(loaded.plan, _PROMPT).tolist()
    for i in range(batch):
        engine.add(new_request(str(i), prompt, params, cache_salt=str(i)))  # each computes its own
    generated: set[str] = set()
    while len(generated) < batch:
        generated.update(delta.request_id for delta in engine.step())
    plan.run_s = plan.choose_s = plan.num_steps = 0
    start = time.perf_counter()
    for _ in range(_STEPS):
        engine.step()
    seconds = time.perf_counter() - start
    engine.abort_all()
    return seconds


def through_thread(loaded: LoadedModel, plan: TimedPlan, params: SamplingParams, batch: int) -> float:
    """As `through_engine`, from the first token of the last sequence on, each read by a task of its own."""
    prompt = some_tokens(loaded.plan, _PROMPT).tolist()

    async def serve() -> float:
        worker = AsyncEngine(Engine(plan, loaded.tokenizer))  # type: ignore[arg-type]
        worker.start()
        started: set[int] = set()
        start = 0.0

        async def read(number: int) -> None:
            nonlocal start
            async for _ in worker.generate(prompt, params, str(number), cache_salt=str(number)):
                if number not in started:
                    started.add(number)
                    if len(started) == batch:
                        plan.run_s = plan.choose_s = plan.num_steps = 0
                        start = time.perf_counter()
                elif start and plan.num_steps >= _STEPS:
                    return

        await asyncio.gather(*(read(number) for number in range(batch)))
        seconds = time.perf_counter() - start
        worker.close()
        return seconds

    return asyncio.run(serve())


WAYS: dict[str, Callable[[LoadedModel, TimedPlan, SamplingParams, int], float]] = {
    "engine": through_engine,
    "thread": through_thread,
}


@click.command()
@click.argument("model", required=False)
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True)
def overhead(model: str | None, batch: int, repeats: int) -> None:
    """Measure, print the shares, and append the rows to results/overhead.csv."""
    settings = read_settings()
    loaded = load(model or default_model(settings.cache_dir), max_sequences=batch, settings=settings)
    loaded.settle()
    circumstances = asdict(stamp(loaded.package, read_placement_facts(), loaded.device, loaded.plan.target))
    rows = []
    for way, run in WAYS.items():
        for name, params in SAMPLINGS.items():
            samples = [_shares(run, loaded, params, batch) for _ in range(repeats)]
            step_s, sampler, engine = (median(each) for each in zip(*samples, strict=True))
            rows.append({"through": way, "sampling": name, "batch": batch, "step_s": step_s, "sampler_share": sampler,
                         "engine_share": engine, "repeats": repeats, **circumstances})  # fmt: skip
            click.echo(f"through the {way}, {name:<6} {batch} sequences: a step {step_s * 1e3:.2f} ms, of it the "
                       f"sampler {sampler:.2%} and the engine {engine:.2%}")  # fmt: skip
    RESULTS.parent.mkdir(exist_ok=True)
    append_rows(RESULTS, rows)


def _shares(run: Callable[..., float], loaded: LoadedModel, params: SamplingParams, batch: int) -> tuple[float, ...]:
    """Seconds of a step; the sampler's share of it, and that of everything but the plan and the sampler."""
    plan = TimedPlan(loaded.plan)
    seconds = run(loaded, plan, params, batch)
    own_s = seconds - plan.run_s - plan.choose_s
    return seconds / plan.num_steps, plan.choose_s / seconds, own_s / seconds


if __name__ == "__main__":
    overhead()
