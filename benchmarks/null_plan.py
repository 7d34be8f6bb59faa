"""What does the engine itself take of a step, with how many sequences running?

    python benchmarks/null_plan.py

Steps of decode on a plan that computes nothing, in seconds of this thread's own processor time, so that what else runs
on the machine does not count. Rows go to results/null_plan.csv.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click
import numpy as np

from trivet import __version__
from trivet._native import Gate, Sampler, Team
from trivet.base.dtypes import Array
from trivet.driver.readers.host import read_facts
from trivet.framework.engine.cost_model import CostModel, Rates
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import new_request
from trivet.framework.engine.targets import Targets
from trivet.framework.graph.cost import StepCost
from trivet.framework.graph.plan import Batch, Limits
from trivet.serve.bench.rows import append_rows

RESULTS = Path(__file__).parent / "results" / "null_plan.csv"
_PROMPT, _VOCAB = 100, 8


class NullPlan:
    """Logits that are there already."""

    vocab_size, slot_tokens = _VOCAB, 32

    def __init__(self, num_sequences: int) -> None:
        self.limits = Limits(2 * num_sequences, num_sequences, num_sequences, 4096)
        self.num_slots = 32 * num_sequences
        self.sampler = Sampler(Team([None]), _VOCAB)
        self._logits = np.zeros((num_sequences, _VOCAB), np.float32)

    def run(self, batch: Batch, arriving: Sequence[Gate] = ()) -> Array:
        return self._logits[: len(batch.rows)]


@click.command()
@click.option("--sequences", type=click.IntRange(1), multiple=True, default=(1, 32, 256, 1000), show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=100, show_default=True)
def null_plan(sequences: tuple[int, ...], repeats: int) -> None:
    """Measure, print, and append the rows to results/null_plan.csv."""
    rows = []
    for count in sequences:
        costs = CostModel(StepCost(1, 1, 1, 1, 1, 1), Rates())
        engine = Engine(NullPlan(count), None, costs=costs, targets=Targets(itl_s=1.0))
        params = SamplingParams(temperature=0, ignore_eos=True)
        for number in range(count):
            engine.add(new_request(str(number), [1] * _PROMPT, params))
        started: set[str] = set()
        while len(started) < count:
            started.update(delta.request_id for delta in engine.step())
        samples = []
        for _ in range(repeats):
            start = time.thread_time()
            engine.step()
            samples.append(time.thread_time() - start)
        engine.abort_all()
        step_s = median(samples)
        rows.append({
            "running": count, "step_ms": f"{step_s * 1e3:.3f}", "per_sequence_us": f"{step_s / count * 1e6:.2f}",
            "repeats": repeats, "processor": read_facts().cpus.model, "version": __version__,
        })  # fmt: skip
        click.echo(f"{count} running: a step takes {step_s * 1e3:.2f} ms of processor time")
    RESULTS.parent.mkdir(exist_ok=True)
    append_rows(RESULTS, rows)


if __name__ == "__main__":
    null_plan()
