"""What should the KV pool give up first? Prompts of public traces through the real pool, under each policy.

    python benchmarks/reclaim.py mooncake_conversation_trace.jsonl mooncake_synthetic_trace.jsonl

One prompt after the other, with nothing in progress beside it: what is found depends on what was kept, and on nothing
else. A slot is a block of the trace, 512 tokens; seconds are those of Qwen2.5-7B on an Ascend 910B3 by its published
figures. Rows go to results/reclaim.csv.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from pathlib import Path

import click

from trivet import __version__
from trivet.base.units import GIB
from trivet.driver.devices.soc import soc_named
from trivet.framework.engine.capacity import room_of
from trivet.framework.engine.cost_model import CostModel
from trivet.framework.engine.kv_pool import kv_pool
from trivet.framework.engine.replay.trace import PREFIX_TOKENS, Arrival, read_trace
from trivet.framework.graph.cost import step_cost, stream_bytes
from trivet.framework.memory.chain import Link
from trivet.framework.memory.slots import SlotPool
from trivet.framework.model.config import parse_config
from trivet.framework.model.loader import model_graph
from trivet.serve.bench.rows import append_rows
from trivet.serve.bench.shapes import SHAPES

RESULTS = Path(__file__).parent / "results" / "reclaim.csv"
MODEL, DEVICE = "qwen2.5-7b", "910B3"
POOLS_GIB = (16, 32, 64, 128, 256, 512)


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def reclaim(traces: tuple[Path, ...]) -> None:
    """Ask for each trace's prompts, print what was found, and append the rows to results/reclaim.csv."""
    RESULTS.parent.mkdir(exist_ok=True)
    graph = model_graph(parse_config(SHAPES[MODEL]), "bfloat16", device="npu")
    rates = room_of(soc_named(DEVICE), None).rates
    assert rates is not None, "a device whose bandwidth is published"
    costs = CostModel(step_cost(graph), rates)
    block_bytes = sum(stream_bytes(graph).values()) * PREFIX_TOKENS
    for trace in traces:
        arrivals = read_trace(trace)
        for gib in POOLS_GIB:
            for policy in ("cost", "lru"):
                pool = kv_pool(gib * GIB // block_bytes, PREFIX_TOKENS, costs, policy)
                hit_rate, saved = _found(pool, arrivals, costs)
                append_rows(RESULTS, [{
                    "trace": trace.stem, "pool_gib": gib, "slots": pool.num_slots, "reclaim": policy,
                    "hit_rate": f"{hit_rate:.4f}", "prefill_saved": f"{saved:.4f}", "version": __version__,
                }])  # fmt: skip
                click.echo(f"{trace.stem}, {gib} GiB, {policy}: {hit_rate:.1%} found, {saved:.1%} of the seconds")


def _found(pool: SlotPool, arrivals: list[Arrival], costs: CostModel) -> tuple[float, float]:
    """The shares of blocks, and of the seconds of computing them, that were in the pool when they were asked for."""
    asked = hits = 0
    asked_s = spared_s = 0.0
    for arrival in arrivals:
        names = [str(block).encode() for block in arrival.blocks]
        links = [Link(name, parent, b"", b"") for parent, name in pairwise([b"", *names])][: pool.num_slots]
        held = array("i")
        found = pool.find(links)
        pool.share(held, found)
        pool.grow(held, len(links) * PREFIX_TOKENS)
        for slot, link in zip(held[len(found) :], links[len(found) :], strict=True):
            pool.name(slot, link)
        pool.release(held)
        asked, hits = asked + len(links), hits + len(found)
        asked_s += costs.prefill_s(0, len(links) * PREFIX_TOKENS)
        spared_s += costs.prefill_s(0, len(found) * PREFIX_TOKENS)
    return hits / asked, spared_s / asked_s


if __name__ == "__main__":
    reclaim()
