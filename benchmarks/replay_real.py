"""How near does a replay come to the real thing? A trace scaled down, served by the engine on this host and foretold.

    python benchmarks/replay_real.py MODEL azure2023_conv.csv mooncake_conversation_trace.jsonl …

Requests arrive as the trace says, shorter by --scale, faster by --speedup; costs are calibrated first, on the same
plan. Rows, with what clients saw, what was foretold and the error of each figure, go to results/replay_real.csv.
"""

from __future__ import annotations

from pathlib import Path

import click

from trivet import __version__
from trivet.driver.readers.host import read_facts
from trivet.framework.engine.cost_model import calibrated
from trivet.framework.engine.replay.compared import compare
from trivet.framework.engine.replay.trace import read_trace, scaled
from trivet.framework.model.loader import load
from trivet.serve.bench.rows import append_rows

RESULTS = Path(__file__).parent / "results" / "replay_real.csv"
FIGURES = [(name, figure) for name in ("ttft_s", "itl_s") for figure in ("p50", "p90", "p99", "sd")]


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.argument("traces", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--scale", default=16, show_default=True, help="Prompts and answers are so many times shorter; 1 to 64")
@click.option("--speedup", default=1.0, show_default=True, help="Requests arrive so many times as fast")
@click.option("--requests", type=click.IntRange(1), default=200, show_default=True, help="The first of each trace")
@click.option("--context", default=2048, show_default=True)
@click.option("--kv-memory", default=512, show_default=True, metavar="MIB")
def replay_real(
    model: Path, traces: tuple[Path, ...], scale: int, speedup: float, requests: int, context: int, kv_memory: int
) -> None:
    """Serve and foretell each trace, print, and append the rows to results/replay_real.csv."""
    RESULTS.parent.mkdir(exist_ok=True)
    for trace in traces:
        loaded = load(model, max_context=context, kv_memory=kv_memory << 20)
        loaded.settle()
        arrivals = scaled(read_trace(trace, requests), scale, speedup)
        found = compare(loaded.plan, calibrated(loaded.plan), arrivals)
        loaded.plan.close()
        errors = found.errors()
        append_rows(RESULTS, [{
            "trace": trace.stem, "model": loaded.name, "scale": scale, "speedup": speedup, "requests": len(arrivals),
            "answered": found.measured.num_answered,
            **{f"{name.removesuffix('_s')}_{figure}_{what}": value and f"{value:.5f}"
               for name, figure in FIGURES
               for what, value in (("s", getattr(found.measured, name)[figure]),
                                   ("predicted_s", getattr(found.predicted, name)[figure]),
                                   ("error", errors.get(f"{name}_{figure}")))},
            "processor": read_facts().cpus.model, "version": __version__,
        }])  # fmt: skip
        click.echo(f"{trace.stem}: " + ", ".join(f"{key} {error:+.0%}" for key, error in errors.items()))


if __name__ == "__main__":
    replay_real()
