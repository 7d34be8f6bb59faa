"""A graph's nodes as calls over numbered values on a torch device: nothing is looked up while they run.

Weights and caches stay on the device; what a step makes lives until the last call that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from trivet.base.dtypes import Array
from trivet.base.errors import GraphError
from trivet.framework.graph.ir import Graph, Node, continued
from trivet.framework.graph.plan import refusal
from trivet.operators.contract import Implementation, choose, operator_named, resolve
from trivet.operators.torch.call import DTYPES, Run
from trivet.operators.torch.sample import to_torch

Inputs = list[torch.Tensor | None]


@dataclass(frozen=True)
class BoundCall:
    node: Node
    variant: str
    run: Run
    inputs: tuple[int | None, ...]  # numbers of values
    outputs: tuple[int, ...]
    dead: tuple[int, ...]  # values that nothing reads after this call


# How a call is performed: plainly, timed, watched, captured. Takes its inputs, gives its outputs.
Perform = Callable[[BoundCall, Inputs], list[torch.Tensor]]


class TorchCalls:
    """`graph` over `weights`, which are copied to `device`, with the implementations registered for `registered`.

    `sizes` are those that are fixed while a plan lives: `num_slots` and `slot_tokens` of the caches that are reserved
    here, and what implementations want to know. Raises GraphError when none takes a node.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Array],
        sizes: Mapping[str, int],
        *,
        device: torch.device,
        registered: str,
    ) -> None:
        self.graph = graph
        self._device = device
        self._numbers = {name: i for i, name in enumerate(graph.values)}
        self._lasting: Inputs = [None] * len(self._numbers)
        for stream in graph.streams:
            spec = graph.values[stream.name]
            slots, tokens, halves, heads, head_dim = (resolve(axis, sizes) for axis in spec.axes)
            assert spec.dtype is not None and spec.layout == "blocks", "this plan keeps its caches in blocks"
            shape = (halves, slots, tokens, heads, head_dim)
            cache = torch.zeros(shape, dtype=DTYPES[spec.dtype], device=device)
            self._lasting[self._numbers[stream.name]] = cache
        self._shared = _shared_weights(graph)
        self.calls = self._bind(weights, registered, sizes)

    @property
    def cache_bytes(self) -> int:
        caches = (self._lasting[self._numbers[stream.name]] for stream in self.graph.streams)
        return sum(cache.nbytes for cache in caches if cache is not None)

    def slot_parts(self, slot: int) -> list[torch.Tensor]:
        """What a slot has of each stream, [halves, slot_tokens, heads, head_dim], in the caches themselves."""
        caches = (self._lasting[self._numbers[stream.name]] for stream in self.graph.streams)
        return [cache[:, slot] for cache in caches if cache is not None]

    def run(self, given: Mapping[str, torch.Tensor], perform: Perform, kept: Sequence[str] = ()) -> list[torch.Tensor]:
        """The graph's outputs and the values `kept` of a step whose inputs are `given`, without waiting for them."""
        values = list(self._lasting)
        for name, tensor in given.items():
            values[self._numbers[name]] = tensor
        wanted = [self._numbers[name] for name in (*self.graph.outputs, *kept)]
        for call in self.calls:
            outputs = perform(call, [None if i is None else values[i] for i in call.inputs])
            for i, tensor in zip(call.outputs, outputs, strict=True):
                values[i] = tensor
            for i in call.dead:
                if i not in wanted:
                    values[i] = None
        made = [values[i] for i in wanted]
        return [tensor for tensor in made if tensor is not None]

    def weight(self, name: str) -> torch.Tensor:
        """A weight as the call that reads it takes it."""
        read = [(given, i) for call in self.calls for given, i in zip(call.node.inputs, call.inputs, strict=True)]
        tensor = next(self._lasting[i] for given, i in read if given == name and i is not None)
        assert tensor is not None
        return tensor

    def close(self) -> None:
        """Give the memory back; nothing can run after it."""
        self._lasting.clear()
        self.calls = ()

    def _bind(self, weights: Mapping[str, Array], registered: str, sizes: Mapping[str, int]) -> tuple[BoundCall, ...]:
        last_use = {name: i for i, node in enumerate(self.graph.nodes) for name in node.names}
        lasting = {*weights, *(stream.name for stream in self.graph.streams)}
        lasting.update(made for node in self.graph.nodes for made, _ in continued(node))
        calls: list[BoundCall] = []
        for i, node in enumerate(self.graph.nodes):
            chosen = self._choose(node, registered)
            run: Run = chosen.lower(self.graph.call(node), sizes)
            for name in node.names:
                if name in weights and self._lasting[self._numbers[name]] is None:
                    stored = to_torch(weights[name], self.graph.values[name].dtype)
                    self._lasting[self._numbers[name]] = stored.to(self._device)
            inputs = self._inputs(node, chosen)
            outputs = tuple(self._numbers[name] for name in node.outputs)
            last = [name for name in node.names if last_use[name] == i]
            dead = tuple(self._numbers[name] for name in last if name not in lasting)
            calls.append(BoundCall(node, chosen.variant, run, inputs, outputs, dead))
            for number in (self._numbers[name] for name in last if name in weights):
                if not any(number in call.inputs for call in calls):
                    self._lasting[number] = None  # only its prepared form is read
        return tuple(calls)

    def _choose(self, node: Node, registered: str) -> Implementation:
        chosen = choose(self.graph.call(node), registered)
        if not isinstance(chosen, Implementation):
            raise GraphError(refusal(node, registered, chosen), "see `trivet operators explain`")
        return chosen

    def _inputs(self, node: Node, chosen: Implementation) -> tuple[int | None, ...]:
        """The numbers of the node's inputs; a weight that the implementation wants in another form gets its own."""
        numbers = []
        for argument, name in zip(operator_named(node.operator).inputs, node.inputs, strict=True):
            number = None if name is None else self._numbers[name]
            if name in self.graph.weights and name not in self._shared and chosen.prepare is not None:
                assert number is not None
                prepared = chosen.prepare(self.graph.call(node), argument.name, self._lasting[number])
                if prepared is not self._lasting[number]:
                    number = len(self._lasting)
                    self._lasting.append(prepared)
            numbers.append(number)
        return tuple(numbers)


def _shared_weights(graph: Graph) -> set[str]:
    """Weights that two operators read, as a table tied to the head: they stay as stored.

    A second copy of such a table in another layout would be memory that nobody planned.
    """
    readers: dict[str, set[str]] = {name: set() for name in graph.weights}
    for node in graph.nodes:
        for name in readers.keys() & set(node.names):
            readers[name].add(node.operator)
    return {name for name, operators in readers.items() if len(operators) > 1}
