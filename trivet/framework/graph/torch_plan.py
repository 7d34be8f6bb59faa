"""A graph bound to a torch device: a list of calls over numbered values, nothing looked up while it runs.

The step's integers go to the device in one copy, the wanted logits come back in one; between them the host waits for
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trivet.base.dtypes import Array
from trivet.base.errors import GraphError
from trivet.framework.graph.ir import Graph, Node, continued
from trivet.framework.graph.plan import Batch, Limits, refusal
from trivet.operators.contract import Implementation, choose, operator_named, resolve
from trivet.operators.torch.call import DTYPES, Run
from trivet.operators.torch.lengths import cache_rows, step_lengths
from trivet.operators.torch.sample import to_torch
from trivet.operators.torch.traffic import Traffic, TrafficCounter


@dataclass(frozen=True)
class _Call:
    run: Run
    inputs: tuple[int | None, ...]  # numbers of values
    outputs: tuple[int, ...]
    dead: tuple[int, ...]  # values that nothing reads after this call


class TorchPlan:
    """A Plan on a torch device.

    `weights` are the stored arrays, copied to `device`; the caches of `num_slots` slots are reserved there. Takes the
    implementations registered for `registered`. Raises GraphError when none takes a node.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Array],
        *,
        limits: Limits,
        num_slots: int,
        slot_tokens: int,
        device: str = "cpu",
        registered: str = "torch",
    ) -> None:
        self.limits = limits
        self.num_slots = num_slots
        self.slot_tokens = slot_tokens
        self.vocab_size = resolve(graph.values[graph.outputs[0]].axes[1], {})
        self.graph = graph
        self._device = torch.device(device)
        self._numbers = {name: i for i, name in enumerate(graph.values)}
        self._lasting: list[torch.Tensor | None] = [None] * len(self._numbers)
        for name, stored in weights.items():
            self._lasting[self._numbers[name]] = to_torch(stored, graph.values[name].dtype).to(self._device)
        sizes = {
            "num_slots": num_slots,
            "slot_tokens": slot_tokens,
            "sequences": limits.max_sequences,
            "max_slots": -(-limits.max_context // slot_tokens),
        }
        for stream in graph.streams:
            spec = graph.values[stream.name]
            slots, tokens, halves, heads, head_dim = (resolve(axis, sizes) for axis in spec.axes)
            assert spec.dtype is not None and spec.layout == "blocks", "this plan keeps its caches in blocks"
            shape = (halves, slots, tokens, heads, head_dim)
            cache = torch.zeros(shape, dtype=DTYPES[spec.dtype], device=self._device)
            self._lasting[self._numbers[stream.name]] = cache
        self.target = f"{registered} on {self._device}"
        self.nodes = [node for node in graph.nodes if not operator_named(node.operator).is_view]
        self._calls = self._bind(registered, sizes)

    @property
    def pool_bytes(self) -> int:
        caches = (self._lasting[self._numbers[stream.name]] for stream in self.graph.streams)
        return sum(cache.nbytes for cache in caches if cache is not None)

    @property
    def activation_bytes(self) -> int:
        """What a step of the greatest size makes, all values together: PyTorch's allocator keeps fewer alive."""
        sizes = {"tokens": self.limits.max_tokens, "rows": self.limits.max_rows}
        caches = {made for node in self.graph.nodes for made, _ in continued(node)}
        made = (name for node in self.nodes for name in node.outputs if name not in caches)
        return sum(self.graph.values[name].bytes(sizes) for name in made)

    def run(self, batch: Batch) -> Array:
        logits: Array = self.compute(batch)[self.graph.outputs[0]].float().cpu().numpy()
        return logits

    def profile(self, batch: Batch) -> tuple[Array, Array]:
        """As `run`; also the seconds of each of `nodes`, waiting for the device after every one."""
        seconds: list[float] = []
        values = self.compute(batch, seconds=seconds)
        views = [operator_named(node.operator).is_view for node in self.graph.nodes]
        own = [spent for spent, is_view in zip(seconds, views, strict=True) if not is_view]
        return values[self.graph.outputs[0]].float().cpu().numpy(), np.asarray(own)

    def traffic(self, batch: Batch) -> list[Traffic]:
        """What each of `nodes` makes PyTorch move in this step."""
        counted: list[Traffic] = []
        self.compute(batch, traffic=counted)
        views = [operator_named(node.operator).is_view for node in self.graph.nodes]
        return [each for each, is_view in zip(counted, views, strict=True) if not is_view]

    def values(self, batch: Batch, names: Sequence[str]) -> dict[str, Array]:
        made = self.compute(batch, kept=tuple(names))
        return {name: made[name].float().cpu().numpy() for name in names}

    def moved_bytes(self, batch: Batch) -> list[int]:
        return [each.num_bytes for each in self.traffic(batch)]

    def close(self) -> None:
        """Give the memory back; the plan cannot run after it."""
        self._lasting.clear()
        self._calls = ()

    @torch.inference_mode()
    def compute(
        self,
        batch: Batch,
        kept: tuple[str, ...] = (),
        seconds: list[float] | None = None,
        traffic: list[Traffic] | None = None,
    ) -> dict[str, torch.Tensor]:
        """The outputs and the values `kept`, on the device, without waiting for it unless each call is timed.

        `seconds` and `traffic` get an element for every node of the graph.
        """
        values = list(self._lasting)
        rows, sent = self._send(batch)
        for name, tensor in sent.items():
            values[self._numbers[name]] = tensor
        lengths = step_lengths(batch.starts, batch.positions, rows)
        wanted = {self._numbers[name] for name in (*self.graph.outputs, *kept)}
        for call in self._calls:
            start = time.perf_counter()
            inputs = [None if i is None else values[i] for i in call.inputs]
            if traffic is None:
                outputs = call.run(inputs, lengths)
            else:
                with TrafficCounter() as counted:
                    outputs = call.run(inputs, lengths)
                traffic.append(counted)
            if seconds is not None:
                synchronize(self._device)
                seconds.append(time.perf_counter() - start)
            for i, tensor in zip(call.outputs, outputs, strict=True):
                values[i] = tensor
            for i in call.dead:
                if i not in wanted:
                    values[i] = None
        made = {name: values[self._numbers[name]] for name in (*self.graph.outputs, *kept)}
        return {name: tensor for name, tensor in made.items() if tensor is not None}

    def _send(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The rows that the step stores, and the batch's integers, on the device by one copy, taken apart there."""
        rows = cache_rows(batch.starts, batch.positions, batch.slots, self.slot_tokens)
        arrays = [rows, *(np.asarray(array) for array in vars(batch).values())]
        joined = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays]))
        parts = joined.to(self._device, non_blocking=True).split([array.size for array in arrays])
        stored, *others = (part.view(array.shape) for part, array in zip(parts, arrays, strict=True))
        return stored, dict(zip(vars(batch), others, strict=True))

    def _bind(self, registered: str, sizes: Mapping[str, int]) -> tuple[_Call, ...]:
        last_use = {name: i for i, node in enumerate(self.graph.nodes) for name in node.names}
        lasting = {name for name in self._numbers if self._lasting[self._numbers[name]] is not None}
        lasting.update(made for node in self.graph.nodes for made, _ in continued(node))
        calls = []
        for i, node in enumerate(self.graph.nodes):
            dead = [name for name in node.names if last_use[name] == i and name not in lasting]
            chosen = self._choose(node, registered)
            run: Run = chosen.lower(self.graph.call(node), sizes)
            inputs = self._prepared_inputs(node, chosen)
            outputs = tuple(self._numbers[name] for name in node.outputs)
            calls.append(_Call(run, inputs, outputs, tuple(self._numbers[name] for name in dead)))
        return tuple(calls)

    def _choose(self, node: Node, registered: str) -> Implementation:
        chosen = choose(self.graph.call(node), registered)
        if not isinstance(chosen, Implementation):
            raise GraphError(refusal(node, registered, chosen), "see `trivet operators explain`")
        return chosen

    def _prepared_inputs(self, node: Node, chosen: Implementation) -> tuple[int | None, ...]:
        """The numbers of the node's inputs; a weight that the implementation wants in another form gets its own."""
        numbers = []
        for argument, name in zip(operator_named(node.operator).inputs, node.inputs, strict=True):
            number = None if name is None else self._numbers[name]
            if name in self.graph.weights and number is not None and chosen.prepare is not None:
                prepared = chosen.prepare(self.graph.call(node), argument.name, self._lasting[number])
                if prepared is not self._lasting[number]:
                    number = len(self._lasting)
                    self._lasting.append(prepared)
            numbers.append(number)
        return tuple(numbers)


def synchronize(device: torch.device) -> None:
    """Wait for the device; the CPU is never behind."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()
