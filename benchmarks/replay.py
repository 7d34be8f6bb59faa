"""Do slots waste less, and refuse less, than pages and than whole contexts? Public traces, on a simulated device.

    python benchmarks/replay.py azure2023_code.csv azure2023_conv.csv mooncake_conversation_trace.jsonl …

Each trace is replayed with the same KV memory cut in four ways, through the real scheduler and pool, against the
clock of the cost model: Qwen2.5-7B on an Ascend 910B3 by its published figures. Rows go to results/replay.csv. A way
of cutting is a number of tokens in a piece: slots of 2 MiB, a paged cache's blocks of 16 and 128, and one piece for
the whole context. A free piece serves whoever asks, so none of the four has external fragmentation; what they waste is
inside the pieces.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click

from trivet import __version__
from trivet.base.units import GIB
from trivet.driver.devices.soc import soc_named
from trivet.framework.engine.capacity import capacity, room_of
from trivet.framework.engine.cost_model import CostModel
from trivet.framework.engine.replay.hit_rates import hit_rates
from trivet.framework.engine.replay.simulation import Simulation
from trivet.framework.engine.replay.trace import PREFIX_TOKENS, read_trace
from trivet.framework.engine.targets import Targets
from trivet.framework.graph.cost import step_cost
from trivet.framework.memory.slots import SlotPool
from trivet.framework.model.config import parse_config
from trivet.framework.model.loader import model_graph
from trivet.serve.bench.rows import append_rows

RESULTS = Path(__file__).parent / "results" / "replay.csv"
# From the published config.json of Qwen2.5-7B-Instruct.
MODEL = {
    "architectures": ["Qwen2ForCausalLM"], "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "max_position_embeddings": 131072, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
MAX_SEQUENCES, MAX_STEP_TOKENS, SLOT_BYTES = 256, 2048, 2 << 20
TIERS_GIB = (32, 128, 512, 2048)


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--device", default="910B3", show_default=True)
@click.option("--kv-memory", default=12.0, show_default=True, metavar="GIB", help="What a shared device leaves to it")
@click.option("--context", default=32768, show_default=True)
@click.option("--speedup", default=1.0, show_default=True, help="Requests arrive so many times as fast")
@click.option("--requests", default=4000, show_default=True, help="The first of each trace")
def replay(
    traces: tuple[Path, ...], device: str, kv_memory: float, context: int, speedup: float, requests: int
) -> None:
    """Replay each trace four ways, print, and append the rows to results/replay.csv."""
    graph = model_graph(parse_config(MODEL), "bfloat16", device="npu")
    room = room_of(soc_named(device), None)
    assert room.rates is not None, "a device whose bandwidth is published"
    token_bytes = capacity(graph, room, context, 1, MAX_STEP_TOKENS).kv_token_bytes
    slot_tokens = SLOT_BYTES // token_bytes // 16 * 16
    cuts = {"slots of 2 MiB": slot_tokens, "paged, 16": 16, "paged, 128": 128, "whole contexts": context}
    rows = []
    for trace in traces:
        arrivals = [replace(each, at_s=each.at_s / speedup) for each in read_trace(trace, requests)]
        tiers = [int(gib * GIB) // (token_bytes * PREFIX_TOKENS) for gib in TIERS_GIB]
        hits = hit_rates(arrivals, tiers)
        for cut, tokens in cuts.items():
            pool = SlotPool(max(1, int(kv_memory * GIB) // (tokens * token_bytes)), tokens)
            costs = CostModel(step_cost(graph), room.rates)
            started = time.perf_counter()
            served = Simulation(pool, costs, Targets(), context, MAX_STEP_TOKENS, MAX_SEQUENCES).run(arrivals)
            rows.append({
                "trace": trace.stem, "cut": cut, "slot_tokens": tokens, "num_slots": pool.num_slots, "device": device,
                "kv_memory_gib": kv_memory, "speedup": speedup, "requests": served.num_requests,
                "finished": served.num_finished, "too_long": served.num_too_long,
                "allocation_success": f"{served.allocation_success:.4f}",
                "hit_rate": f"{served.hit_rate:.4f}",
                "internal_fragmentation": f"{served.internal_fragmentation:.4f}", "external_fragmentation": 0,
                "preemptions": served.num_preemptions, "usage": f"{served.usage:.4f}",
                "ttft_p50_s": f"{served.ttft_s['p50']:.4f}", "ttft_p99_s": f"{served.ttft_s['p99']:.4f}",
                "itl_p50_s": f"{served.itl_s['p50']:.5f}", "itl_p99_s": f"{served.itl_s['p99']:.5f}",
                "tokens_per_s": f"{served.tokens_per_s:.1f}",
                **{f"hit_rate_{gib}_gib": f"{hits[size]:.4f}" for gib, size in zip(TIERS_GIB, tiers, strict=True)},
                "steps": served.num_steps, "host_s": f"{time.perf_counter() - started:.1f}", "version": __version__,
            })  # fmt: skip
            click.echo(
                f"{trace.stem}, {cut}: {served.allocation_success:.1%} had theirs at once, "
                f"{served.internal_fragmentation:.1%} empty inside, TTFT p99 {served.ttft_s['p99']:.1f} s"
            )
    RESULTS.parent.mkdir(exist_ok=True)
    append_rows(RESULTS, rows)


if __name__ == "__main__":
    replay()
