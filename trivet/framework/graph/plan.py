"""A plan is a graph bound to a device: what one step takes, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trivet.base.dtypes import Array


@dataclass(frozen=True)
class Limits:
    """The sizes a plan is bound for. A step within them allocates nothing."""

    max_tokens: int  # tokens of one step, over all its sequences
    max_sequences: int  # sequences of one step
    max_rows: int  # rows of one step whose logits are wanted
    max_context: int  # positions of one sequence


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

    def run(self, batch: Batch) -> Array:
        """Logits of the wanted rows, float32 [rows, vocab_size]; overwritten by the next step."""
        ...
