"""A plan is a graph bound to a device: what one step takes, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from trivet._native import Gate, Sampler
from trivet.base.dtypes import Array
from trivet.driver.devices.memory import Memory
from trivet.framework.graph.ir import Graph, Node
from trivet.framework.memory.slot_memory import SlotMemory


class Bring(Protocol):
    """Brings stored weights into a device's own memory, for a plan that says which and when."""

    def __call__(self, names: Sequence[str], memory_for: Callable[[int], Memory]) -> tuple[Memory, Mapping[str, int]]:
        """The memory that `memory_for` makes of a number of bytes, and where in it each of the weights begins.

        A weight without elements has no place. Raises CheckpointError for bytes that cannot be read or are not those
        that were written, ResourceError for memory or copies that the device refuses.
        """
        ...


@dataclass(frozen=True)
class Limits:
    """The sizes a plan is bound for. A step within them allocates nothing."""

    max_tokens: int  # tokens of one step, over all its sequences
    max_sequences: int  # sequences of one step
    max_rows: int  # rows of one step whose logits are wanted
    max_context: int  # positions of one sequence


def decode_limits(limits: Limits) -> Limits:
    """Those of steps that have one token of each sequence."""
    return replace(limits, max_tokens=limits.max_sequences)


@dataclass(frozen=True)
class Batch:
    """One step: the new tokens of some sequences, one sequence after the other. All arrays are int32.

    A sequence contributes the tokens at consecutive positions; everything before them is in its slots already.
    """

    tokens: Array  # [tokens]
    positions: Array  # [tokens]
    starts: Array  # [sequences + 1]: sequence i has tokens starts[i] up to starts[i + 1]
    slots: Array  # [sequences, ≤ max slots of one sequence]: slot numbers by position, padded with 0
    rows: Array  # [rows]: the tokens whose logits are wanted, ascending


def refusal(node: Node, device: str, refusals: Sequence[tuple[str, str]]) -> str:
    """The sentence that says why no implementation on `device` takes `node`."""
    reasons = "; ".join(f"{variant}: {reason}" for variant, reason in refusals) or "none is registered"
    return f"{', '.join(node.outputs)}: no implementation of {node.operator} on {device} takes it ({reasons})"


class Plan(Protocol):
    """What the engine drives."""

    @property
    def limits(self) -> Limits: ...

    @property
    def num_slots(self) -> int: ...

    @property
    def slot_tokens(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def sampler(self) -> Sampler:
        """Chooses tokens from rows of logits, on the host's threads that the plan has."""
        ...

    def run(self, batch: Batch, arriving: Sequence[Gate] = ()) -> Array:
        """Logits of the wanted rows, float32 [rows, vocab_size]; overwritten by the next step.

        `arriving`: slots of these sequences fill while the step runs. It reads of a stream what has come, and waits for
        the rest; of a gate that has failed, what the step makes of its sequence is to be thrown away.
        """
        ...


class BoundPlan(Plan, SlotMemory, Protocol):
    """A plan with what a host wants to know of it: its memory, slot by slot too, and where its time goes."""

    @property
    def graph(self) -> Graph: ...

    @property
    def nodes(self) -> Sequence[Node]: ...  # those that became a call of the device, in order

    @property
    def target(self) -> str: ...  # which kernels it runs, for people

    @property
    def pool_bytes(self) -> int: ...

    @property
    def activation_bytes(self) -> int: ...

    def profile(self, batch: Batch) -> tuple[Array, Array]:
        """As `run`; also the seconds of each of `nodes`, float64."""
        ...

    def moved_bytes(self, batch: Batch) -> Sequence[int] | None:
        """The bytes that each of `nodes` read and wrote in this step; None where nothing watches the kernels."""
        ...

    def values(self, batch: Batch, names: Sequence[str]) -> dict[str, Array]:
        """What a step makes of the values named, float32; each must be an output or `kept` when the plan was bound."""
        ...

    def close(self) -> None:
        """Give the memory back; the plan cannot run after it."""
        ...
