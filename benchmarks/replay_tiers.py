"""What do tiers behind the KV pool bring those who wait? Public traces, by the engine's own code on a simulated clock.

    python benchmarks/replay_tiers.py mooncake_conversation_trace.jsonl mooncake_synthetic_trace.jsonl

Each trace is replayed with the same pool and with what TIERS says behind it: Qwen2.5-7B on an Ascend 910B3 by its
published figures, requests arriving a tenth as fast, as for one chip of a cluster. Slots are of 128 tokens, as that
chip's attention takes them, and copied over its link; files are read and written at what one good NVMe drive gives, and
four. Rows go to results/replay_tiers.csv.
"""

from __future__ import annotations

from pathlib import Path

import click

from trivet import __version__
from trivet.base.units import GIB
from trivet.driver.devices.soc import soc_named
from trivet.framework.engine.capacity import HOST_LINK_BYTES_PER_S, capacity, room_of
from trivet.framework.engine.cost_model import CostModel
from trivet.framework.engine.kv_pool import kv_pool
from trivet.framework.engine.replay.simulation import Simulation
from trivet.framework.engine.replay.timed_stores import Behind
from trivet.framework.engine.replay.trace import read_trace, scaled
from trivet.framework.engine.targets import Targets
from trivet.framework.graph.binding import BINDINGS
from trivet.framework.graph.cost import step_cost
from trivet.framework.model.config import parse_config
from trivet.framework.model.loader import model_graph
from trivet.serve.bench.rows import append_rows
from trivet.serve.bench.shapes import SHAPES

RESULTS = Path(__file__).parent / "results" / "replay_tiers.csv"
MODEL, DEVICE = "qwen2.5-7b", "910B3"
CONTEXT, MAX_SEQUENCES, MAX_STEP_TOKENS = 131072, 256, 2048
SPEEDUP, POOL_GIB = 0.1, 40
# GiB of host memory, GiB of files, GB/s of the files
TIERS = ((0, 0, 0), (64, 0, 0), (256, 0, 0), (64, 1024, 3), (64, 1024, 12))


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--requests", type=click.IntRange(1), default=1000, show_default=True, help="The first of each trace")
def replay_tiers(traces: tuple[Path, ...], requests: int) -> None:
    """Replay each trace with each of TIERS, print, and append the rows to results/replay_tiers.csv."""
    RESULTS.parent.mkdir(exist_ok=True)
    graph = model_graph(parse_config(SHAPES[MODEL]), "bfloat16", device="npu")
    room = room_of(soc_named(DEVICE), BINDINGS["npu"].slot_tokens)
    assert room.rates is not None, "a device whose bandwidth is published"
    found = capacity(graph, room, CONTEXT, 1, MAX_STEP_TOKENS)
    slot_bytes = found.slot_tokens * found.kv_token_bytes
    costs = CostModel(step_cost(graph), room.rates)
    for trace in traces:
        arrivals = scaled(read_trace(trace, requests), 1, SPEEDUP)
        for host_gib, files_gib, files_gb_s in TIERS:
            behind = Behind(
                slot_bytes, host_gib * GIB, HOST_LINK_BYTES_PER_S, files_gib * GIB or None, files_gb_s * 1e9, 1
            )
            served = Simulation(
                kv_pool(POOL_GIB * GIB // slot_bytes, found.slot_tokens, costs), costs, Targets(), CONTEXT,
                MAX_STEP_TOKENS, MAX_SEQUENCES, behind if host_gib else None,
            ).run(arrivals)  # fmt: skip
            append_rows(RESULTS, [{
                "trace": trace.stem, "pool_gib": POOL_GIB, "host_gib": host_gib, "files_gib": files_gib,
                "files_gb_s": files_gb_s, "requests": served.num_requests, "finished": served.num_finished,
                "hit_rate_pool": f"{served.hit_rate:.4f}", "hit_rate_host": f"{served.host_hit_rate:.4f}",
                "hit_rate_files": f"{served.files_hit_rate:.4f}", "prefill_saved": f"{served.saved:.4f}",
                **{f"ttft_{figure}_s": f"{served.ttft_s[figure]:.4f}" for figure in ("p50", "p90", "p99")},
                "itl_p50_s": f"{served.itl_s['p50']:.5f}", "itl_p99_s": f"{served.itl_s['p99']:.5f}",
                "read_s": f"{served.read_s:.1f}", "stalled_s": f"{served.stalled_s:.1f}", "steps": served.num_steps,
                "version": __version__,
            }])  # fmt: skip
            click.echo(
                f"{trace.stem}, {host_gib} GiB of host memory, {files_gib} GiB of files at {files_gb_s} GB/s: "
                f"{served.saved:.1%} of prefill spared, TTFT p50 {served.ttft_s['p50']:.2f} s, p99 "
                f"{served.ttft_s['p99']:.1f} s; {served.read_s:.0f} s of reading, {served.stalled_s:.0f} s waited for"
            )


if __name__ == "__main__":
    replay_tiers()
