"""What of each weight is stored for which rank: all of it for every rank, or a piece for each.

Tensor-parallel ranks run the same graph on pieces: a rank's piece has that rank's heads, or its part of the MLP, and
lies in one range of bytes, packed as if it were a weight of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trivet.base.errors import ConfigError
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.recipe import Concatenate, Recipe, Source
from trivet.framework.model.config import ModelConfig
from trivet.framework.model.families.names import split_of


@dataclass(frozen=True)
class Piece:
    """A weight as one rank has it; `rank` None: as all have it."""

    weight: str
    rank: int | None
    recipe: Recipe

    @property
    def name(self) -> str:
        """Its name in a file."""
        return self.weight if self.rank is None else f"{self.weight}.rank{self.rank}"


def cut(graph: Graph, config: ModelConfig, num_ranks: int) -> tuple[Piece, ...]:
    """All pieces of the graph's weights: first what every rank reads, then each rank's own, in the graph's order.

    Raises ConfigError when the ranks cannot have equal parts.
    """
    if num_ranks == 1:
        return tuple(Piece(name, None, recipe) for name, recipe in graph.weights.items())
    _check_divisible(config, num_ranks)
    divided = [name for name, recipe in graph.weights.items() if _is_divided(recipe, config)]
    shared = [Piece(name, None, recipe) for name, recipe in graph.weights.items() if name not in divided]
    own = [
        Piece(name, rank, _piece(graph.weights[name], config, rank, num_ranks))
        for rank in range(num_ranks)
        for name in divided
    ]
    return (*shared, *own)


def _check_divisible(config: ModelConfig, num_ranks: int) -> None:
    for key in ("num_kv_heads", "intermediate_size", "vocab_size"):
        if getattr(config, key) % num_ranks:
            raise ConfigError(
                f"--tensor-parallel {num_ranks} does not divide the model's {key}, {getattr(config, key)}",
                "choose a number of ranks that divides num_kv_heads, intermediate_size and vocab_size",
            )


def _is_divided(recipe: Recipe, config: ModelConfig) -> bool:
    # A head tied to the embedding is a source named as the embedding, which is whole on every rank.
    return any(split_of(config.family, source.tensor) is not None for source in recipe.sources)


def _piece(recipe: Recipe, config: ModelConfig, rank: int, num_ranks: int) -> Recipe:
    parts = tuple(_block(source, config, rank, num_ranks) for source in recipe.sources)
    return replace(recipe, content=Concatenate(parts) if isinstance(recipe.content, Concatenate) else parts[0])


def _block(source: Source, config: ModelConfig, rank: int, num_ranks: int) -> Source:
    rows = source.shape[0]
    if split_of(config.family, source.tensor) == "outputs":
        return Source(source.tensor, (rows // num_ranks, *source.shape[1:]), (rank * rows // num_ranks, 0))
    columns = source.shape[1]
    return Source(source.tensor, (rows, columns // num_ranks), (0, rank * columns // num_ranks))
