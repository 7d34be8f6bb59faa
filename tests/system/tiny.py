"""The tiny oracle checkpoints as models ready to run, and what was recorded of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from trivet._native import Team
from trivet.base.dtypes import Array, DType
from trivet.base.formats import KvFormat
from trivet.driver.devices.device import DeviceName
from trivet.framework.graph.cost import stream_bytes
from trivet.framework.graph.cpu_plan import CpuPlan
from trivet.framework.graph.fetches import with_fetches
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.passes import MAX_LEVEL
from trivet.framework.graph.plan import Batch, Limits
from trivet.framework.graph.recipe import evaluate
from trivet.framework.graph.reference import ReferencePlan
from trivet.framework.memory.slots import SlotLayout, lay_out
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.framework.model.config import parse_config
from trivet.framework.model.loader import model_graph

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tiny"
FAMILIES = ("llama", "qwen2", "qwen3")
SLOT_TOKENS = 16
LIMITS = Limits(max_tokens=128, max_sequences=8, max_rows=128, max_context=128)


@cache
def recorded(family: str) -> dict[str, Array]:
    with np.load(FIXTURES / family / "ref.npz") as arrays:
        return dict(arrays)


@cache
def graph_and_weights(
    family: str, dtype: DType, level: int = MAX_LEVEL, device: DeviceName = "cpu", kv_dtype: KvFormat | None = None
) -> tuple[Graph, dict[str, Array]]:
    """`dtype` int8 keeps the matrices in it, and all else in bfloat16."""
    config, checkpoint = parse_config(open_checkpoint(FIXTURES / family).config), open_checkpoint(FIXTURES / family)
    matrices = "int8" if dtype == "int8" else None
    graph = model_graph(config, "bfloat16" if matrices else dtype, level, device, matrices=matrices, kv_dtype=kv_dtype)
    weights = {name: np.concatenate(list(evaluate(recipe, checkpoint.read_rows)))
               for name, recipe in graph.weights.items()}  # fmt: skip
    return graph, weights


def small_slots(graph: Graph) -> SlotLayout:
    """Slots of one block each, so that a short sequence holds several."""
    return lay_out(stream_bytes(graph), slot_bytes=1)


def cpu_plan(
    family: str, dtype: DType, *, level: int = MAX_LEVEL, kept: tuple[str, ...] = (), num_threads: int = 2,
    num_slots: int = 40, limits: Limits = LIMITS, target: str | None = None, is_fetched: bool = False,
    kv_dtype: KvFormat | None = None,
) -> CpuPlan:  # fmt: skip
    graph, weights = graph_and_weights(family, dtype, level, kv_dtype=kv_dtype)
    graph = with_fetches(graph) if is_fetched else graph
    graph = replace(graph, outputs=(*graph.outputs, *kept))
    return CpuPlan(
        graph, weights, limits=limits, slots=small_slots(graph), num_slots=num_slots,
        team=Team([None] * num_threads), target=target,
    )  # fmt: skip


def reference_plan(
    family: str, dtype: DType, *, level: int = MAX_LEVEL, kv_dtype: KvFormat | None = None
) -> ReferencePlan:
    graph, weights = graph_and_weights(family, dtype, level, kv_dtype=kv_dtype)
    return ReferencePlan(graph, weights, limits=LIMITS, num_slots=40, slot_tokens=SLOT_TOKENS)


def step(prompts: Sequence[Sequence[int]], starts_at: Sequence[int], first_slot: int = 0) -> Batch:
    """One step in which every sequence brings tokens from a position on; its slots are its own, in reverse order.

    Logits are wanted of every token.
    """
    slots_each = -(-LIMITS.max_context // SLOT_TOKENS)
    lengths = [len(prompt) for prompt in prompts]
    positions = [np.arange(at, at + length) for at, length in zip(starts_at, lengths, strict=True)]
    slots = [[first_slot + i * slots_each + slots_each - 1 - j for j in range(slots_each)] for i in range(len(prompts))]
    int32: Callable[[object], Array] = lambda values: np.asarray(values, np.int32)  # noqa: E731
    return Batch(
        tokens=int32(np.concatenate([np.asarray(prompt) for prompt in prompts])),
        positions=int32(np.concatenate(positions)),
        starts=int32(np.cumsum([0, *lengths])),
        slots=int32(slots),
        rows=int32(np.arange(sum(lengths))),
    )
