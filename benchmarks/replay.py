"""Do slots waste less, and refuse less, than pages and than whole contexts? Public traces, on a simulated device.

    python benchmarks/replay.py azure2023_code.csv azure2023_conv.csv
    python benchmarks/replay.py --speedup 0.1 --kv-memory 40 --requests 4000 servegen_deepseek-r1
    python benchmarks/replay.py --speedup 0.1 --kv-memory 40 --context 131072 --requests 4000 mooncake_….jsonl …
    python benchmarks/replay.py --model qwen2.5-0.5b --speedup 0.5 --requests 2000 azure2023_conv.csv
    python benchmarks/replay.py --model qwen2.5-14b --speedup 0.5 --requests 2000 azure2023_conv.csv

Each trace is replayed with the same KV memory cut in four ways, through the real scheduler and pool, against the
clock of the cost model: a model of Qwen2.5 on an Ascend 910B3 by its published figures. Rows go to results/replay.csv.
A way of cutting is a number of tokens in a piece: slots of 2 MiB, a paged cache's blocks of 16 and 128, and one piece
for the whole context. A free piece serves whoever asks, so none of the four has external fragmentation; what they
waste is inside the pieces. Slots are replayed with each way of giving cold ones up.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from trivet import __version__
from trivet.base.units import GIB
from trivet.driver.devices.soc import soc_named
from trivet.framework.engine.capacity import capacity, room_of
from trivet.framework.engine.cost_model import CostModel
from trivet.framework.engine.kv_pool import kv_pool
from trivet.framework.engine.replay.hit_rates import hit_rates, size_for
from trivet.framework.engine.replay.simulation import Simulation
from trivet.framework.engine.replay.trace import PREFIX_TOKENS, Arrival, read_trace
from trivet.framework.engine.targets import Targets
from trivet.framework.graph.cost import step_cost
from trivet.framework.memory.reclaim import ReclaimName
from trivet.framework.model.config import parse_config
from trivet.framework.model.loader import model_graph
from trivet.serve.bench.rows import append_rows
from trivet.serve.bench.shapes import SHAPES

RESULTS = Path(__file__).parent / "results" / "replay.csv"
MAX_SEQUENCES, MAX_STEP_TOKENS = 256, 2048
TIERS_GIB = (32, 128, 512, 2048)
ENOUGH = 0.9  # of what a tier of any size would find


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--model", type=click.Choice(list(SHAPES)), default="qwen2.5-7b", show_default=True)
@click.option("--device", default="910B3", show_default=True)
@click.option("--kv-memory", default=12.0, show_default=True, metavar="GIB", help="What a shared device leaves to it")
@click.option("--context", default=32768, show_default=True)
@click.option("--speedup", default=1.0, show_default=True, help="Requests arrive so many times as fast")
@click.option("--requests", type=click.IntRange(1), help="The first of each trace  [default: all]")
def replay(
    traces: tuple[Path, ...], model: str, device: str, kv_memory: float, context: int, speedup: float,
    requests: int | None,
) -> None:  # fmt: skip
    """Replay each trace four ways, print, and append the rows to results/replay.csv."""
    RESULTS.parent.mkdir(exist_ok=True)
    graph = model_graph(parse_config(SHAPES[model]), "bfloat16", device="npu")
    room = room_of(soc_named(device), None)
    assert room.rates is not None, "a device whose bandwidth is published"
    found = capacity(graph, room, context, 1, MAX_STEP_TOKENS)
    token_bytes = found.kv_token_bytes
    cuts: tuple[tuple[str, int, ReclaimName], ...] = (
        ("slots of 2 MiB", found.slot_tokens, "cost"),
        ("slots of 2 MiB", found.slot_tokens, "lru"),
        ("paged, 16", 16, "lru"),
        ("paged, 128", 128, "lru"),
        ("whole contexts", context, "lru"),
    )
    for trace in traces:
        arrivals = [replace(each, at_s=each.at_s / speedup) for each in read_trace(trace, requests)]
        tiers = _tiers(arrivals, token_bytes)
        for cut, tokens, reclaim in cuts:
            costs = CostModel(step_cost(graph), room.rates)
            pool = kv_pool(max(1, int(kv_memory * GIB) // (tokens * token_bytes)), tokens, costs, reclaim)
            served = Simulation(pool, costs, Targets(), context, MAX_STEP_TOKENS, MAX_SEQUENCES).run(arrivals)
            append_rows(RESULTS, [{
                "trace": trace.stem, "model": model, "cut": cut, "reclaim": reclaim, "slot_tokens": tokens,
                "num_slots": pool.num_slots, "device": device, "kv_memory_gib": kv_memory, "context": context,
                "speedup": speedup, "requests": served.num_requests, "finished": served.num_finished,
                "too_long": served.num_too_long, "allocation_success": f"{served.allocation_success:.4f}",
                "hit_rate": f"{served.hit_rate:.4f}", "prefill_saved": f"{served.saved:.4f}",
                "internal_fragmentation": f"{served.internal_fragmentation:.4f}", "external_fragmentation": 0,
                "preemptions": served.num_preemptions, "usage": f"{served.usage:.4f}",
                "ttft_p50_s": f"{served.ttft_s['p50']:.4f}", "ttft_p99_s": f"{served.ttft_s['p99']:.4f}",
                "itl_p50_s": f"{served.itl_s['p50']:.5f}", "itl_p99_s": f"{served.itl_s['p99']:.5f}",
                "tokens_per_s": f"{served.tokens_per_s:.1f}", **tiers, "steps": served.num_steps,
                "version": __version__,
            }])  # fmt: skip
            click.echo(
                f"{trace.stem}, {cut}, {reclaim}: {served.allocation_success:.1%} had theirs at once, "
                f"{served.internal_fragmentation:.1%} empty inside, {served.hit_rate:.1%} found, "
                f"TTFT p99 {served.ttft_s['p99']:.1f} s"
            )


def _tiers(arrivals: list[Arrival], token_bytes: int) -> dict[str, Any]:
    """What tiers behind the pool would find, and how large one would have to be for most of it."""
    block_bytes = token_bytes * PREFIX_TOKENS
    sizes = [int(gib * GIB) // block_bytes for gib in TIERS_GIB]
    rates = hit_rates(arrivals, [*sizes, None])
    enough = size_for(arrivals, ENOUGH) * block_bytes / GIB
    return {
        **{f"hit_rate_{gib}_gib": f"{rates[size]:.4f}" for gib, size in zip(TIERS_GIB, sizes, strict=True)},
        "hit_rate_any": f"{rates[None]:.4f}",
        "tier_gib_for_90_percent": f"{enough:.0f}",
    }


if __name__ == "__main__":
    replay()
