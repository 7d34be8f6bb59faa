"""A graph's nodes as calls over numbered values on a torch device: nothing is looked up while they run.

Weights and caches stay on the device; what a step makes lives until the last call that reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch

from trivet.base.dtypes import item_bytes, row_bytes
from trivet.base.errors import GraphError
from trivet.base.units import GIB
from trivet.framework.graph.ir import Graph, Node, continued
from trivet.framework.graph.plan import refusal
from trivet.framework.graph.torch_weights import TorchWeights
from trivet.operators.contract import Implementation, choose, operator_named, resolve
from trivet.operators.torch.call import DTYPES, Run

# Of weights that are there in two forms at a time: few enough to be little of any device, enough that a ring of buffers
# that fills and drains with each part is mostly full.
_PASSING_BYTES = GIB

Inputs = list[torch.Tensor | None]


@dataclass(frozen=True)
class BoundCall:
    node: Node
    implementation: Implementation
    run: Run
    inputs: tuple[int | None, ...]  # numbers of values
    outputs: tuple[int, ...]
    dead: tuple[int, ...]  # values that nothing reads after this call


# How a call is performed: plainly, timed, watched, captured. Takes its inputs, gives its outputs.
Perform = Callable[[BoundCall, Inputs], list[torch.Tensor]]


class TorchCalls:
    """`graph` over `weights`, taken to `device`, with the implementations registered for `registered`.

    `sizes` are those that are fixed while a plan lives: `num_slots` and `slot_tokens` of the caches that are reserved
    here, and what implementations want to know. Raises GraphError when none takes a node.
    """

    def __init__(
        self,
        graph: Graph,
        weights: TorchWeights,
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
            row = row_bytes(head_dim, spec.dtype) // item_bytes(spec.dtype)
            cache = torch.zeros((halves, slots, tokens, heads, row), dtype=DTYPES[spec.dtype], device=device)
            self._lasting[self._numbers[stream.name]] = cache
        self.calls = tuple(self._bind(registered, sizes))
        self._place(weights)

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
        tensor = self._lasting[self._numbers[name]]
        assert tensor is not None
        return tensor

    def close(self) -> None:
        """Give the memory back; nothing can run after it."""
        self._lasting.clear()
        self.calls = ()

    def _bind(self, registered: str, sizes: Mapping[str, int]) -> Iterator[BoundCall]:
        last_use = {name: i for i, node in enumerate(self.graph.nodes) for name in node.names}
        lasting = {*self.graph.weights, *(stream.name for stream in self.graph.streams)}
        lasting.update(made for node in self.graph.nodes for made, _ in continued(node))
        for i, node in enumerate(self.graph.nodes):
            chosen = self._choose(node, registered)
            run: Run = chosen.lower(self.graph.call(node), sizes)
            inputs = tuple(None if name is None else self._numbers[name] for name in node.inputs)
            outputs = tuple(self._numbers[name] for name in node.outputs)
            last = [name for name in node.names if last_use[name] == i]
            dead = tuple(self._numbers[name] for name in last if name not in lasting)
            yield BoundCall(node, chosen, run, inputs, outputs, dead)

    def _choose(self, node: Node, registered: str) -> Implementation:
        chosen = choose(self.graph.call(node), registered)
        if not isinstance(chosen, Implementation):
            raise GraphError(refusal(node, registered, chosen), "see `trivet operators explain`")
        return chosen

    def _place(self, weights: TorchWeights) -> None:
        """Every weight in the form that its call takes. Those that stay as stored come together, and lie so.

        The others pass through: they come a part at a time and are gone when their other form has been made, so that
        the device never holds both forms of them all.
        """
        wanted = self._prepared()
        stay = [name for name in self.graph.weights if name not in wanted]
        for name, tensor in weights.take(stay).items():
            self._lasting[self._numbers[name]] = tensor
        for names in _parts(self.graph, list(wanted)):
            came = weights.take(names)
            for name in names:
                stored = came.pop(name)
                self._lasting[self._numbers[name]] = _apart(wanted[name](stored), stored)

    def _prepared(self) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
        """What makes of a stored weight what its call takes, for those that are not taken as stored.

        A weight that two calls read stays as stored, such as a table tied to the head: a second copy in another layout
        would be memory that nobody planned.
        """
        makers: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        num_readers = Counter(name for node in self.graph.nodes for name in node.names)
        for call in self.calls:
            if call.implementation.prepare is None:
                continue
            for argument, name in zip(operator_named(call.node.operator).inputs, call.node.inputs, strict=True):
                if name is not None and name in self.graph.weights and num_readers[name] == 1:
                    made = partial(call.implementation.prepare, self.graph.call(call.node), argument.name)
                    makers[name] = made
        return makers


def _parts(graph: Graph, names: Sequence[str]) -> Iterator[list[str]]:
    """The weights in parts of about `_PASSING_BYTES`, none cut."""
    part: list[str] = []
    filled = 0
    for name in names:
        recipe = graph.weights[name]
        assert recipe.dtype is not None, "a plan takes a graph whose weights have their dtypes"
        size = prod(recipe.stored_shape) * item_bytes(recipe.dtype)
        if part and filled + size > _PASSING_BYTES:
            yield part
            part, filled = [], 0
        part.append(name)
        filled += size
    if part:
        yield part


def _apart(made: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """`made` in memory of its own: a view would keep all that came with it."""
    is_view = made.untyped_storage().data_ptr() == stored.untyped_storage().data_ptr()
    return made.clone() if is_view else made
