"""How does a step grow: with the context of one sequence, and with the number of sequences?

    python benchmarks/growth.py [--max-context 32768] [--max-batch 64] [--kv-dtype int8]

A model of SmolLM2-135M's shape with random weights and room for longer contexts: what a weight is does not change the
time it takes. Rows go to results/growth.csv, and the curves of this run to results/growth.svg, or growth-int8.svg of
such a KV cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import accumulate, takewhile
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from trivet._native import Team, targets
from trivet.base.dtypes import Array, cast
from trivet.base.formats import KvFormat
from trivet.base.settings import read_settings
from trivet.base.svg import Panel, document, line, powers, text
from trivet.base.units import align_up
from trivet.driver.devices.table import open_device
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.graph.cost import node_bytes, streamed_bytes
from trivet.framework.graph.cpu_plan import CpuPlan
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.plan import Limits
from trivet.framework.memory.arena import Arena
from trivet.framework.memory.slots import lay_out
from trivet.framework.model.config import parse_config
from trivet.framework.model.loader import model_graph, stream_bytes
from trivet.serve.bench.limits import memory_speeds
from trivet.serve.bench.rows import append_rows
from trivet.serve.bench.stamp import stamp
from trivet.serve.bench.steps import decode_steps, own_slots, prefill_steps, seconds_of

RESULTS = Path(__file__).parent / "results"
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0, "tie_word_embeddings": True,
}  # fmt: skip
_FIRST_CONTEXT = 128
_BATCH_CONTEXT = 512  # of each sequence, where their number grows
_STEPS = 8


@click.command()
@click.option("--max-context", type=click.IntRange(_FIRST_CONTEXT), default=32768, show_default=True)
@click.option("--max-batch", type=click.IntRange(1), default=64, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=7, show_default=True)
@click.option("--kv-dtype", type=click.Choice(["int8"]), help="Format of the KV cache  [default: bfloat16]")
@click.option("--threads", type=click.IntRange(1), help="Worker threads  [default: cores of the NUMA node]")
def growth(
    max_context: int, max_batch: int, repeats: int, kv_dtype: KvFormat | None, threads: int | None
) -> None:  # fmt: skip
    """Measure, print, append the rows, draw the curves."""
    facts, settings = read_placement_facts(), read_settings()
    device = open_device("cpu", facts, threads)
    target = settings.cpu_target or targets()[0]
    model = "random, SmolLM2-135M's shape" + (f", KV cache in {kv_dtype}" if kv_dtype else "")
    circumstances = {**asdict(stamp(None, facts, device, target)), "model": model}
    plan = _random_plan(max_context, max_batch, kv_dtype, device.cpus, target)
    bandwidth = median(memory_speeds(device.cpus, repeats))
    rows = []
    for question, context, batch in _points(max_context, max_batch):
        row = {"question": question, "context": context, "batch": batch,
               **_measured(plan, context, batch, repeats), "read_bandwidth": bandwidth}  # fmt: skip
        row["attention_share_of_bandwidth"] = row["attention_bytes_per_s"] / bandwidth
        rows.append({**row, **circumstances})
        click.echo(f"{question:<8} context {context:>6}, {batch:>3} sequences: {row['step_s'] * 1e3:8.2f} ms, "
                   f"attention {row['attention_s'] * 1e3:8.2f} ms at {row['attention_share_of_bandwidth']:.0%} of "
                   f"{bandwidth / 1e9:.1f} GB/s")  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    append_rows(RESULTS / "growth.csv", rows)
    (RESULTS / (f"growth-{kv_dtype}.svg" if kv_dtype else "growth.svg")).write_text(_drawing(rows))


def _points(max_context: int, max_batch: int) -> Iterator[tuple[str, int, int]]:
    for context in takewhile(lambda n: n <= max_context, (_FIRST_CONTEXT << i for i in range(32))):
        yield "context", context, 1
    for batch in takewhile(lambda n: n <= max_batch, (1 << i for i in range(32))):
        yield "batch", min(_BATCH_CONTEXT, max_context), batch


def _random_plan(
    max_context: int, max_batch: int, kv_dtype: KvFormat | None, cpus: Sequence[int], target: str
) -> CpuPlan:
    longest = max_context + _STEPS
    graph = model_graph(parse_config({**SHAPE, "max_position_embeddings": longest}), "bfloat16", kv_dtype=kv_dtype)
    slots = lay_out(stream_bytes(graph))
    num_slots = max(slots.slots_for(longest), max_batch * slots.slots_for(min(_BATCH_CONTEXT, max_context) + _STEPS))
    team = Team(list(cpus))
    limits = Limits(max(512, max_batch), max_batch, max_batch, longest)
    weights = _random_weights(graph)
    plan = CpuPlan(graph, weights, limits=limits, slots=slots, num_slots=num_slots, team=team, target=target)
    _fill(plan)
    return plan


def _random_weights(graph: Graph) -> dict[str, Array]:
    """In one arena, as a package's are: pages of another size would be read at another speed."""
    rng = np.random.default_rng(0)
    stored = {name: rng.standard_normal(recipe.stored_shape, np.float32) * np.float32(0.05)
              for name, recipe in graph.weights.items()}  # fmt: skip
    made = {name: cast(values, "float32", graph.weights[name].dtype) for name, values in stored.items()}
    ends = list(accumulate(align_up(array.nbytes, 4096) for array in made.values()))
    arena = Arena(ends[-1], "weights")
    weights = {}
    for end, (name, array) in zip(ends, made.items(), strict=True):
        weights[name] = arena.view(end - align_up(array.nbytes, 4096), array.shape, array.dtype)
        weights[name][:] = array
    return weights


def _fill(plan: CpuPlan) -> None:
    """Compute every position of every slot once: memory that was never written is not read from memory."""
    for slot in range(plan.num_slots):
        seconds_of(plan, prefill_steps(plan, plan.slot_tokens, plan.limits.max_tokens, np.array([[slot]], np.int32)))


def _measured(plan: CpuPlan, context: int, batch: int, repeats: int) -> dict[str, float]:
    """Medians of decode steps in which every sequence sees `context` positions, the new one last."""
    steps = decode_steps(plan, [context - 1] * batch, _STEPS, own_slots(plan, batch, context + _STEPS))
    seconds_of(plan, steps)
    samples = [seconds_of(plan, steps) / _STEPS for _ in range(repeats)]
    is_attention = np.array([node.operator == "attention" for node in plan.nodes])
    attention_s = median(float(plan.profile(steps[0])[1][is_attention].sum()) for _ in range(repeats))
    attention_bytes = sum(node_bytes(plan.graph, n, steps[0]) for n in plan.nodes if n.operator == "attention")
    return {
        "step_s": median(samples), "step_s_low": min(samples), "step_s_high": max(samples), "repeats": repeats,
        "streamed_bytes": streamed_bytes(plan.graph, steps[0]), "attention_s": attention_s,
        "attention_bytes_per_s": attention_bytes / attention_s,
    }  # fmt: skip


_WIDTH, _HEIGHT, _MARGIN = 420, 300, 50
_CURVES = (("step_s", "step", "#1f77b4"), ("attention_s", "attention in it", "#d62728"))


def _drawing(rows: Sequence[dict[str, Any]]) -> str:
    """Two panels, both axes by powers of two: a straight line that grows no faster than the axis is no cliff."""
    panels = [
        _panel(0, "step time, one sequence", "positions of context", rows, "context"),
        _panel(_WIDTH, f"step time, {_BATCH_CONTEXT} positions each", "sequences", rows, "batch"),
    ]
    return document(2 * _WIDTH, _HEIGHT, [shape for panel in panels for shape in panel])


def _panel(left: int, title: str, axis: str, rows: Sequence[dict[str, Any]], key: str) -> Iterator[str]:
    """The rows of a question, which is called as what grows in it."""
    own = [row for row in rows if row["question"] == key]
    marks = powers(row[name] * 1e3 for row in own for name, *_ in _CURVES)
    panel = Panel(left, _WIDTH, _HEIGHT, _MARGIN, (own[0][key], own[-1][key]), (marks[0], marks[-1]))
    yield text((left + _WIDTH / 2, 20), title, "middle", is_bold=True)
    yield text((left + _WIDTH / 2, _HEIGHT - 12), axis, "middle")
    yield from panel.grid({row[key]: _short(row[key]) for row in own}, {mark: f"{mark:g} ms" for mark in marks})
    for i, (name, words, colour) in enumerate(_CURVES):
        yield line([panel.at(row[key], row[name] * 1e3) for row in own], colour, 2)
        yield text((left + _MARGIN + 6, _MARGIN - 12 + 14 * i), words, colour=colour)


def _short(count: int) -> str:
    return f"{count // 1024}k" if count >= 1024 else str(count)


if __name__ == "__main__":
    growth()
