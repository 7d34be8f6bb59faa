"""Where do the kernels stand under their roofs: the speed of memory, and the peak of multiply-adds?

    python benchmarks/roofline.py [MODEL] [--weights int8 --weights bf16]

The matrices of a step by the number of its rows, and attention by its context, each as operations for a byte and
operations a second. Bytes are the fewest that the contracts allow. The roofs are memory, and multiply-adds with
bfloat16. They are measured before and after each point, since on many machines memory has neighbours and moves from
minute to minute. Rows go to results/roofline.csv, and the picture of this run to results/roofline.svg: each point at
its share of its own roof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from trivet._native import Team, multiply_add_peak, targets
from trivet.base.dtypes import Array
from trivet.base.formats import MatrixFormat
from trivet.base.settings import read_settings
from trivet.base.svg import Panel, Point, document, dot, line, powers, text
from trivet.driver.devices.table import open_device
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.graph.cost import node_bytes, node_flops
from trivet.framework.graph.plan import Batch, BoundPlan
from trivet.framework.model.loader import load, open_model
from trivet.serve.bench.limits import memory_speeds
from trivet.serve.bench.rows import append_rows
from trivet.serve.bench.run import default_model
from trivet.serve.bench.stamp import stamp
from trivet.serve.bench.steps import decode_steps, own_slots, prefill_steps, seconds_of

RESULTS = Path(__file__).parent / "results"
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_CONTEXTS = (512, 2048, 8000)
_STEP_TOKENS = 512
_FORMATS: dict[str, MatrixFormat | None] = {"bf16": None, "int8": "int8"}


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path), required=False)
@click.option("--weights", "formats", multiple=True, type=click.Choice(tuple(_FORMATS)), help="[default: both]")
@click.option("--repeats", type=click.IntRange(1), default=7, show_default=True)
@click.option("--threads", type=click.IntRange(1), help="Worker threads  [default: cores of the NUMA node]")
def roofline(model: Path | None, formats: tuple[str, ...], repeats: int, threads: int | None) -> None:
    """Measure, print, append the rows, draw the picture."""
    facts, settings = read_placement_facts(), read_settings()
    device = open_device("cpu", facts, threads)
    target = settings.cpu_target or targets()[0]
    path = model or default_model(settings.cache_dir)
    rows: list[dict[str, Any]] = []
    for name in formats or tuple(_FORMATS):
        package = open_model(path, weights=_FORMATS[name], verify=False, settings=settings)
        taken = {**asdict(stamp(package, facts, device, target)), "weights": name}
        loaded = load(package.path, threads=threads, max_context=_CONTEXTS[-1] + 1, max_sequences=max(_ROWS),
                      max_step_tokens=_STEP_TOKENS, settings=settings)  # fmt: skip
        loaded.settle()
        before = _limits(device.cpus, target)
        for point in _points(loaded.plan, repeats):
            after = _limits(device.cpus, target)
            bandwidth, peak = (sum(both) / 2 for both in zip(before, after, strict=True))
            before = after
            intensity, speed = point["flops"] / point["bytes"], point["flops"] / point["seconds"]
            row = {**point, "read_bandwidth": bandwidth, "peak": peak,
                   "share": speed / min(peak, bandwidth * intensity), "repeats": repeats}  # fmt: skip
            click.echo(f"{name:<5} {row['part']:<22} {row['at']:>5}: {intensity:8.2f} FLOP/B "
                       f"{speed / 1e9:8.1f} GFLOP/s {row['share']:>6.0%} of the roof")  # fmt: skip
            rows.append({**row, **taken})
        loaded.plan.close()
    RESULTS.mkdir(exist_ok=True)
    append_rows(RESULTS / "roofline.csv", rows)
    (RESULTS / "roofline.svg").write_text(_drawing(rows))


def _limits(cpus: Sequence[int], target: str) -> tuple[float, float]:
    return median(memory_speeds(cpus, 3)), median(multiply_add_peak(Team(list(cpus)), target, "bfloat16", 3))


def _points(plan: BoundPlan, repeats: int) -> Iterator[dict[str, Any]]:
    """The matrices of the layers, the head, and attention: what they took, and what their contracts ask for."""
    head = str(plan.nodes[-1].outputs[0])

    def of(operator: str, is_head: bool = False) -> list[int]:
        return [i for i, node in enumerate(plan.nodes)
                if node.operator == operator and (str(node.outputs[0]) == head) == is_head]  # fmt: skip

    for rows in _ROWS:
        # One new token of so many sequences, each of them short: attention is not the question here.
        step = decode_steps(plan, [plan.slot_tokens // 2] * rows, 1, np.arange(rows, dtype=np.int32)[:, None])[0]
        yield {"part": "layers' matrices", "at": rows, **_measured(plan, step, of("linear"), repeats)}
        yield {"part": "head", "at": rows, **_measured(plan, step, of("linear", True), repeats)}
    for context in _CONTEXTS:
        slots = own_slots(plan, 1, context + 1)
        prompt = prefill_steps(plan, context, _STEP_TOKENS, slots)
        seconds_of(plan, prompt)
        decode = decode_steps(plan, [context - 1], 1, slots)[0]
        yield {"part": "attention, decode", "at": context, **_measured(plan, decode, of("attention"), repeats)}
        yield {"part": "attention, prefill", "at": context, **_measured(plan, prompt[-1], of("attention"), repeats)}


def _measured(plan: BoundPlan, step: Batch, nodes: Sequence[int], repeats: int) -> dict[str, float]:
    seconds_of(plan, [step])
    runs: Array = np.stack([plan.profile(step)[1] for _ in range(repeats)])[:, nodes].sum(axis=1)
    return {
        "seconds": float(np.median(runs)), "seconds_low": float(runs.min()), "seconds_high": float(runs.max()),
        "bytes": float(sum(node_bytes(plan.graph, plan.nodes[i], step) for i in nodes)),
        "flops": float(sum(node_flops(plan.graph, plan.nodes[i], step) for i in nodes)),
    }  # fmt: skip


_WIDTH, _HEIGHT, _MARGIN = 640, 420, 60
_COLOURS = {"layers' matrices": "#1f77b4", "head": "#17becf", "attention, decode": "#d62728",
            "attention, prefill": "#ff7f0e"}  # fmt: skip


def _drawing(rows: Sequence[dict[str, Any]]) -> str:
    """Both axes by powers of two: the slope is memory, the ceiling multiply-adds. Hollow marks are int8."""
    intensities = [row["flops"] / row["bytes"] for row in rows]
    bandwidth = median(row["read_bandwidth"] for row in rows) / 1e9
    peak = median(row["peak"] for row in rows) / 1e9
    speeds = [row["share"] * min(peak, bandwidth * at) for row, at in zip(rows, intensities, strict=True)]
    columns, lines = powers(intensities), powers([*speeds, peak])
    panel = Panel(0, _WIDTH, _HEIGHT, _MARGIN, (columns[0], columns[-1]), (lines[0], lines[-1]))
    start = max(columns[0], lines[0] / bandwidth)
    foot = panel.at(start, start * bandwidth)
    points = zip(rows, intensities, speeds, strict=True)
    shapes = [
        *panel.grid({each: f"{each:g}" for each in columns}, {each: f"{each:g}" for each in lines}),
        text((_WIDTH / 2, _HEIGHT - 16), "operations for a byte", "middle"),
        text((8, 24), "GFLOP/s; filled: bf16, hollow: int8"),
        text((foot[0] + 8, foot[1] - 28), f"{bandwidth:.0f} GB/s"),
    ]
    corner = panel.at(peak / bandwidth, peak)
    shapes.append(line([foot, corner, panel.at(columns[-1], peak)], width=2))
    shapes.append(text((corner[0] + 8, corner[1] - 8), f"{peak:.0f} GFLOP/s, bfloat16"))
    shapes += [_point(row, panel.at(at, speed)) for row, at, speed in points]
    for i, (name, colour) in enumerate(_COLOURS.items()):
        shapes.append(text((_WIDTH - _MARGIN - 130, _HEIGHT - _MARGIN - 70 + 16 * i), name, colour=colour))
    return document(_WIDTH, _HEIGHT, shapes)


def _point(row: dict[str, Any], at: Point) -> str:
    says = f"{row['weights']}, {row['part']}, {row['at']}: {row['share']:.0%} of the roof"
    return dot(at, _COLOURS[row["part"]], says, is_hollow=row["weights"] == "int8")


if __name__ == "__main__":
    roofline()
