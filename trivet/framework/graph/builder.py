"""Writing a graph down node by node, in run order; shapes come from the contracts."""

from __future__ import annotations

from trivet.base.dtypes import DType
from trivet.framework.graph.ir import Graph, Node, Stream, used_weights
from trivet.framework.graph.recipe import Constant, Recipe, Source
from trivet.operators.contract import Attribute, Axis, TensorSpec, operator_named


class GraphBuilder:
    """Collects inputs, weights and nodes; `finish` gives the graph. Errors are those of the contracts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inputs: list[str] = []
        self._nodes: list[Node] = []
        self._values: dict[str, TensorSpec] = {}
        self._weights: dict[str, Recipe] = {}
        self._streams: list[Stream] = []

    def input(self, name: str, axes: tuple[Axis, ...], dtype: DType) -> str:
        self._inputs.append(name)
        self._values[name] = TensorSpec(axes, dtype)
        return name

    def stream(self, name: str, num_kv_heads: int, head_dim: int) -> str:
        """A layer's keys and values in the KV pool."""
        self._inputs.append(name)
        self._streams.append(Stream(name, "kv", num_kv_heads, head_dim))
        self._values[name] = TensorSpec(("num_slots", "slot_tokens", 2, num_kv_heads, head_dim))
        return name

    def weight(self, name: str, tensor: str, shape: tuple[int, ...]) -> str:
        """A weight that is a tensor of the checkpoint. Asked for again, it is the same value."""
        self._weights[name] = Recipe(Source(tensor, shape))
        self._values[name] = TensorSpec(shape)
        return name

    def constant(self, name: str, values: tuple[float, ...]) -> str:
        self._weights[name] = Recipe(Constant(values))
        self._values[name] = TensorSpec((len(values),))
        return name

    def apply(self, operator: str, inputs: tuple[str | None, ...], output: str, **attributes: Attribute) -> str:
        """One node with one output, named `output`."""
        specs = tuple(None if name is None else self._values[name] for name in inputs)
        (self._values[output],) = operator_named(operator).output_specs(specs, attributes)
        self._nodes.append(Node(operator, inputs, (output,), attributes))
        return output

    def finish(self, outputs: tuple[str, ...]) -> Graph:
        return used_weights(
            Graph(
                self._name,
                tuple(self._inputs),
                outputs,
                tuple(self._nodes),
                self._values,
                self._weights,
                tuple(self._streams),
            )
        )
