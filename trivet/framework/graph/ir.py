"""A graph of named values: nodes in run order, names in, names out. Frozen; changed by making another.

Writing the KV cache makes a new value (`cache.0'`) and attention takes it, so that a read can never be scheduled on
the wrong side of its write: the order is data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from trivet.base.dtypes import DTYPES, DType
from trivet.framework.graph import recipe as recipes
from trivet.framework.graph.recipe import Recipe
from trivet.operators.contract import Attribute, Axis, Call, Layout, TensorSpec, operator_named


@dataclass(frozen=True)
class Node:
    """An operator applied to values. An absent optional input is None."""

    operator: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    @property
    def names(self) -> Iterator[str]:
        """The inputs that are there."""
        return (name for name in self.inputs if name is not None)


@dataclass(frozen=True)
class Stream:
    """A per-token state that a model keeps in the KV pool: what a token costs and in what pieces it is kept.

    A plain layer has one stream of kind "kv": keys and values per token. Latents, windows and index keys
    are other kinds of stream, with their own bytes per token.
    """

    name: str  # the graph input that stands for it
    kind: str
    num_heads: int
    head_dim: int


@dataclass(frozen=True)
class Graph:
    """What a model computes in one step over a ragged batch of tokens.

    `values` has the spec of every value; `weights` the recipe of those that come from the checkpoint, in the order
    in which the nodes first use them.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, TensorSpec]
    weights: Mapping[str, Recipe]
    streams: tuple[Stream, ...]

    def call(self, node: Node) -> Call:
        """`node` as its operator and its implementations see it."""
        inputs = tuple(None if name is None else self.values[name] for name in node.inputs)
        return Call(node.operator, inputs, tuple(self.values[name] for name in node.outputs), node.attributes)

    def text(self) -> str:
        """The graph as people read it, one node a line; stable, for snapshots and diffs."""
        lines = [f"graph {self.name}"]
        lines += [f"  input  {name}: {format_spec(self.values[name])}" for name in self.inputs]
        lines += [f"  weight {name}: {format_spec(self.values[name])}" for name in self.weights]
        lines += [f"  {_format_node(node)}" for node in self.nodes]
        lines += [f"  output {name}: {format_spec(self.values[name])}" for name in self.outputs]
        return "\n".join(lines) + "\n"


def format_spec(spec: TensorSpec) -> str:
    layout = "" if spec.layout == "rows" else f" {spec.layout}"
    return f"{spec.dtype or 'float'}[{', '.join(map(str, spec.axes))}]{layout}"


def _format_node(node: Node) -> str:
    arguments = ", ".join(name or "-" for name in node.inputs)
    attributes = "".join(
        f", {key}={value:g}" if isinstance(value, float) else f", {key}={value}"
        for key, value in node.attributes.items()
    )
    return f"{', '.join(node.outputs)} = {node.operator}({arguments}{attributes})"


def continued(node: Node) -> Iterator[tuple[str, str]]:
    """The (output, input) pairs in which the output is the input's own storage, written to: a cache and its next."""
    contract = operator_named(node.operator)
    inputs = dict(zip((argument.name for argument in contract.inputs), node.inputs, strict=True))
    for argument, made in zip(contract.outputs, node.outputs, strict=False):
        source = inputs.get(contract.updates.get(argument.name, ""))
        if source is not None:
            yield made, source


def used_weights(graph: Graph) -> Graph:
    """The graph with only the weights that a node uses, in order of first use: the order they are stored in."""
    order = dict.fromkeys(name for node in graph.nodes for name in node.names if name in graph.weights)
    dropped = set(graph.weights) - set(order)
    values = {name: spec for name, spec in graph.values.items() if name not in dropped}
    return replace(graph, weights={name: graph.weights[name] for name in order}, values=values)


def to_json(graph: Graph) -> dict[str, Any]:
    return {
        "name": graph.name,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "nodes": [[n.operator, list(n.inputs), list(n.outputs), dict(n.attributes)] for n in graph.nodes],
        "values": {name: [list(spec.axes), spec.dtype, spec.layout] for name, spec in graph.values.items()},
        "weights": {name: recipes.to_json(recipe) for name, recipe in graph.weights.items()},
        "streams": [[s.name, s.kind, s.num_heads, s.head_dim] for s in graph.streams],
    }


def from_json(document: dict[str, Any]) -> Graph:
    """The inverse of `to_json`. Raises ValueError, KeyError or TypeError for what is none; the laws are not checked."""
    return Graph(
        name=document["name"],
        inputs=_names(document["inputs"]),
        outputs=_names(document["outputs"]),
        nodes=tuple(_node(*fields) for fields in document["nodes"]),
        values={name: _spec(*fields) for name, fields in document["values"].items()},
        weights={name: recipes.from_json(recipe) for name, recipe in document["weights"].items()},
        streams=tuple(_stream(*fields) for fields in document["streams"]),
    )


def _names(names: list[str]) -> tuple[str, ...]:
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{names} are no names")
    return tuple(names)


def _spec(axes: list[Axis], dtype: DType | None, layout: Layout) -> TensorSpec:
    if not all(isinstance(axis, str) or recipes.is_size(axis) for axis in axes):
        raise ValueError(f"a value has the axes {axes}")
    if dtype not in (None, *DTYPES) or layout not in get_args(Layout):
        raise ValueError(f"a value is {dtype} in {layout}")
    return TensorSpec(tuple(axes), dtype, layout)


def _stream(name: str, kind: str, num_heads: int, head_dim: int) -> Stream:
    if not (isinstance(name, str) and recipes.is_size(num_heads) and recipes.is_size(head_dim)):
        raise ValueError(f"stream {name} is of {num_heads} heads of {head_dim}")
    return Stream(name, kind, num_heads, head_dim)


def _node(operator: str, inputs: list[str | None], outputs: list[str], attributes: dict[str, Any]) -> Node:
    restored = {key: tuple(value) if isinstance(value, list) else value for key, value in attributes.items()}
    for value in restored.values():
        if not isinstance(value, int | float | str) and not all(map(recipes.is_size, value)):
            raise ValueError(f"{operator} has the attributes {attributes}")
    _names([operator, *(name for name in inputs if name is not None)])
    return Node(operator, tuple(inputs), _names(outputs), restored)
