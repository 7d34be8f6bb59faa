"""What of a model fits a device, and how fast it will be there: a budget from facts, before anything is bought or run.

It allocates nothing and measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from trivet.base.errors import ResourceError
from trivet.base.units import format_bytes
from trivet.driver.devices.soc import Soc
from trivet.framework.engine.cost_model import CostModel, Rates, Work, rates_of
from trivet.framework.graph.cost import step_cost, stream_bytes
from trivet.framework.graph.cpu_plan import activation_bytes
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.plan import Limits, decode_limits
from trivet.framework.memory.slots import lay_out

# What a well-made step reaches of the published figures: the defaults of Huawei's own model of performance
# (Ascend/msmodeling@84fec853, tensor_cast/device.py).
COMPUTE_SHARE, MEMORY_SHARE = 0.7, 0.6
# Of a device's memory: the driver, CANN's own buffers and the allocator's rounding take the rest.
USABLE_SHARE = 0.9
# What copies between a host and its chip reach of PCIe 4.0 x16, 31.5 GB/s each way, which that model has for the PCIe
# cards of A2: packets take about a fifth.
HOST_LINK_BYTES_PER_S = 25e9


@dataclass(frozen=True)
class Room:
    """A device as a budget sees it. Speeds are those that a step reaches; None if unknown."""

    name: str
    memory_bytes: int
    bytes_per_s: float | None
    flops_per_s: float | None
    slot_tokens: int | None = None  # where its operators fix it

    @property
    def rates(self) -> Rates | None:
        if self.bytes_per_s is None or self.flops_per_s is None:
            return None
        return rates_of(self.bytes_per_s, self.flops_per_s)


def room_of(soc: Soc, slot_tokens: int | None) -> Room:
    """An Ascend chip, less what is not ours, at the share of its figures that steps reach."""
    return Room(
        f"{soc.name} ({soc.family})",
        int(soc.memory_bytes * USABLE_SHARE),
        None if soc.bytes_per_s is None else soc.bytes_per_s * MEMORY_SHARE,
        soc.flops_per_s * COMPUTE_SHARE,
        slot_tokens,
    )


@dataclass(frozen=True)
class Speed:
    """Predicted. A bound is what the largest part of the time goes into."""

    decode_s: float  # a step in which every sequence, at its full context, gets a token
    decode_tokens_per_s: float  # of all sequences together
    decode_bound: str
    ttft_s: float  # of a prompt as long as the context, alone
    prefill_bound: str


@dataclass(frozen=True)
class Capacity:
    """The three pools in bytes, and what the device has beside them."""

    weight_bytes: int
    activation_bytes: int
    kv_bytes: int  # wanted: `concurrency` sequences of `context` positions
    kv_room_bytes: int  # what weights and activations leave
    kv_token_bytes: int
    slot_tokens: int
    max_concurrency: int  # sequences of `context` positions that fit
    max_context: int  # positions of each of `concurrency` sequences that fit
    speed: Speed | None  # None where the device's speed is unknown

    def check(self, room: Room, context: int, concurrency: int) -> None:
        """Raise ResourceError, with the knobs to turn, when it does not fit."""
        fixed = self.weight_bytes + self.activation_bytes
        if self.max_concurrency >= concurrency:
            return
        message = (
            f"memory: {concurrency} sequences of {context} positions need {format_bytes(self.kv_bytes)} of KV cache "
            f"beside {format_bytes(self.weight_bytes)} of weights and {format_bytes(self.activation_bytes)} of "
            f"activations; {room.name} has {format_bytes(room.memory_bytes)}"
        )
        if fixed >= room.memory_bytes or self.max_concurrency == self.max_context == 0:
            raise ResourceError(message, "take a smaller model, a device with more memory, or --max-step-tokens down")
        knobs = [f"--concurrency {self.max_concurrency}"] if self.max_concurrency else []
        knobs += [f"--context {self.max_context}"] if self.max_context else []
        raise ResourceError(message, " or ".join(knobs))


_BOUNDS = {
    "step": "launching", "row": "sampling", "weight_byte": "reading weights", "linear_flop": "multiplying",
    "cache_byte": "reading the KV cache", "attention_flop": "attention's arithmetic",
}  # fmt: skip


def capacity(
    graph: Graph, room: Room, context: int, concurrency: int, max_step_tokens: int, num_lanes: int = 1
) -> Capacity:
    """The budget of `concurrency` sequences of `context` positions each, all at once. Of two lanes, that of the decodes
    has activations of its own; what is predicted is one lane on the whole device."""
    streams = stream_bytes(graph)
    slots = lay_out(streams, slot_tokens=room.slot_tokens)
    limits = Limits(max(max_step_tokens, concurrency), concurrency, concurrency, context)
    weight_bytes = sum(graph.values[name].bytes({}) for name in graph.weights)
    reserved = activation_bytes(graph, limits, slots)
    if num_lanes == 2:
        reserved += activation_bytes(graph, decode_limits(limits), slots)
    left = max(0, room.memory_bytes - weight_bytes - reserved)
    num_slots = left // slots.stride_bytes
    cost = step_cost(graph)
    rates = room.rates
    return Capacity(
        weight_bytes=weight_bytes,
        activation_bytes=reserved,
        kv_bytes=slots.pool_bytes(concurrency * slots.slots_for(context)),
        kv_room_bytes=left,
        kv_token_bytes=sum(streams.values()),
        slot_tokens=slots.slot_tokens,
        max_concurrency=num_slots // slots.slots_for(context),
        max_context=num_slots // concurrency * slots.slot_tokens,
        speed=None if rates is None else _speed(CostModel(cost, rates), context, concurrency, max_step_tokens),
    )


def _speed(costs: CostModel, context: int, concurrency: int, max_step_tokens: int) -> Speed:
    decode = Work(concurrency, concurrency, concurrency * context, concurrency * context)
    decode_s = costs.predict(decode)
    prefill: dict[str, float] = {}
    for position in range(0, context, max_step_tokens):
        num_tokens = min(max_step_tokens, context - position)
        is_last = position + num_tokens == context
        for name, seconds in costs.parts(Work().plus(position, num_tokens, int(is_last))):
            prefill[name] = prefill.get(name, 0.0) + seconds
    return Speed(
        decode_s=decode_s,
        decode_tokens_per_s=concurrency / decode_s,
        decode_bound=_bound(_added(costs.parts(decode))),
        ttft_s=sum(prefill.values()),
        prefill_bound=_bound(prefill),
    )


def _added(parts: list[tuple[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for name, seconds in parts:
        total[name] = total.get(name, 0.0) + seconds
    return total


def _bound(seconds: dict[str, float]) -> str:
    return _BOUNDS[max(seconds, key=lambda name: seconds[name])]
