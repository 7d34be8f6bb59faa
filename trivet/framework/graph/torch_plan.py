"""A graph bound to a torch device, one call after the other as PyTorch makes them.

The step's integers go to the device in one copy, the wanted logits come back in one; between them the host waits for
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from trivet._native import Gate, Sampler, Team
from trivet.base.dtypes import Array
from trivet.framework.graph.ir import Graph, continued
from trivet.framework.graph.plan import Batch, Bring, Limits
from trivet.framework.graph.torch_calls import BoundCall, Inputs, Perform, TorchCalls
from trivet.framework.graph.torch_weights import TorchWeights
from trivet.operators.contract import operator_named, resolve
from trivet.operators.torch.lengths import StepLengths, cache_rows, step_lengths
from trivet.operators.torch.traffic import Traffic, TrafficCounter

PerformStep = Callable[[StepLengths], Perform]  # how the calls of one step are performed


class TorchPlan:
    """A Plan on a torch device.

    `weights` are the stored arrays, or who brings them to `device`; the caches of `num_slots` slots are reserved there.
    Room is made for `padding` tokens more in a step, each a sequence of its own, in slots behind those. Takes the
    implementations registered for `registered`. Raises GraphError when none takes a node, and what bringing raises.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Array] | Bring,
        *,
        limits: Limits,
        num_slots: int,
        slot_tokens: int,
        device: str = "cpu",
        registered: str = "torch",
        padding: int = 0,
    ) -> None:
        self.limits = limits
        self.num_slots = num_slots
        self.slot_tokens = slot_tokens
        self.vocab_size = resolve(graph.values[graph.outputs[0]].axes[1], {})
        self.sampler = Sampler(Team([None]), self.vocab_size)  # PyTorch has the other threads
        self.graph = graph
        self.target = f"{registered} on {device}"
        self.nodes = [node for node in graph.nodes if not operator_named(node.operator).is_view]
        self._device = torch.device(device)
        sizes = {
            "num_slots": num_slots + -(-padding // slot_tokens),
            "slot_tokens": slot_tokens,
            "sequences": limits.max_sequences + padding,
            "max_slots": -(-limits.max_context // slot_tokens),
        }
        stored = TorchWeights(graph, weights, self._device)
        self._calls = TorchCalls(graph, stored, sizes, device=self._device, registered=registered)

    @property
    def pool_bytes(self) -> int:
        return self._calls.cache_bytes

    @property
    def slot_bytes(self) -> int:
        return sum(part.nbytes for part in self._calls.slot_parts(0))

    def read_slot(self, slot: int, into: Array) -> None:
        end = 0
        for part in self._calls.slot_parts(slot):
            start, end = end, end + part.nbytes
            into[start:end] = part.cpu().contiguous().view(torch.uint8).numpy().ravel()

    @property
    def pieces(self) -> tuple[slice, ...]:
        """One: a step waits for a slot as a whole, before it begins."""
        return (slice(0, self.slot_bytes),)

    def write_slot(self, slot: int, piece: slice, source: Array) -> None:
        assert piece == self.pieces[0], "a slot comes in one piece"
        end = 0
        for part in self._calls.slot_parts(slot):
            start, end = end, end + part.nbytes
            part.copy_(torch.from_numpy(source[start:end]).view(part.dtype).view(part.shape))

    @property
    def activation_bytes(self) -> int:
        """What a step of the greatest size makes, all values together: PyTorch's allocator keeps fewer alive."""
        sizes = {"tokens": self.limits.max_tokens, "rows": self.limits.max_rows}
        caches = {made for node in self.graph.nodes for made, _ in continued(node)}
        made = (name for node in self.nodes for name in node.outputs if name not in caches)
        return sum(self.graph.values[name].bytes(sizes) for name in made)

    def run(self, batch: Batch, arriving: Sequence[Gate] = ()) -> Array:
        assert not arriving, "what comes in one piece is awaited before a step"
        return _on_host(self._step(batch, plainly)[0])

    def profile(self, batch: Batch) -> tuple[Array, Array]:
        """As `run`; also the seconds of each of `nodes`, waiting for the device after every one."""
        seconds: list[float] = []

        def timed(lengths: StepLengths) -> Perform:
            def perform(call: BoundCall, inputs: Inputs) -> list[torch.Tensor]:
                start = time.perf_counter()
                outputs = call.run(inputs, lengths)
                synchronize(self._device)
                if not operator_named(call.node.operator).is_view:
                    seconds.append(time.perf_counter() - start)
                return outputs

            return perform

        logits = _on_host(self._step(batch, timed)[0])
        return logits, np.asarray(seconds)

    def traffic(self, batch: Batch) -> list[Traffic]:
        """What each of `nodes` makes PyTorch move in this step."""
        counted: list[Traffic] = []

        def watched(lengths: StepLengths) -> Perform:
            def perform(call: BoundCall, inputs: Inputs) -> list[torch.Tensor]:
                with TrafficCounter() as counter:
                    outputs = call.run(inputs, lengths)
                if not operator_named(call.node.operator).is_view:
                    counted.append(counter)
                return outputs

            return perform

        self._step(batch, watched)
        return counted

    def values(self, batch: Batch, names: Sequence[str]) -> dict[str, Array]:
        made = self._step(batch, plainly, kept=names)[len(self.graph.outputs) :]
        return {name: _on_host(tensor) for name, tensor in zip(names, made, strict=True)}

    def moved_bytes(self, batch: Batch) -> list[int]:
        return [each.num_bytes for each in self.traffic(batch)]

    def close(self) -> None:
        """Give the memory back; the plan cannot run after it."""
        self._calls.close()

    @torch.inference_mode()
    def _step(self, batch: Batch, perform: PerformStep, kept: Sequence[str] = ()) -> list[torch.Tensor]:
        """The outputs and the values `kept`, on the device, waiting for it only where `perform` does."""
        rows, sent = self._send(batch)
        lengths = step_lengths(batch.starts, batch.positions, rows)
        return self._calls.run(sent, perform(lengths), kept)

    def _send(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The rows that the step stores, and the batch's integers, on the device by one copy, taken apart there."""
        rows = cache_rows(batch.starts, batch.positions, batch.slots, self.slot_tokens)
        arrays = [rows, *(np.asarray(array) for array in vars(batch).values())]
        joined = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays]))
        parts = joined.to(self._device, non_blocking=True).split([array.size for array in arrays])
        stored, *others = (part.view(array.shape) for part, array in zip(parts, arrays, strict=True))
        return stored, dict(zip(vars(batch), others, strict=True))


def plainly(lengths: StepLengths) -> Perform:
    """Every call as its implementation has it."""
    return lambda call, inputs: call.run(inputs, lengths)


def _on_host(tensor: torch.Tensor) -> Array:
    array: Array = tensor.float().cpu().numpy()
    return array


def synchronize(device: torch.device) -> None:
    """Wait for the device; the CPU is never behind."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()
