"""Model families as graphs: one function from configuration to graph each, and the table that finds it."""

from __future__ import annotations

from collections.abc import Callable

import trivet.operators  # noqa: F401  the contracts a graph is made of
from trivet.framework.graph.ir import Graph
from trivet.framework.model.config import ModelConfig
from trivet.framework.model.families.decoder import dense_decoder

FAMILIES: dict[str, Callable[[ModelConfig], Graph]] = {
    "llama": dense_decoder,
    "qwen2": dense_decoder,
    "qwen3": dense_decoder,
}


def build_graph(config: ModelConfig) -> Graph:
    """The graph of the model as its family writes it, before any pass."""
    return FAMILIES[config.family](config)
