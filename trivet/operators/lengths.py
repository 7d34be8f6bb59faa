"""What the host knows of a step without asking the device: how long its sequences are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepLengths:
    """Lengths of one step's sequences, in the order of the batch."""

    query_ends: tuple[int, ...]  # tokens of this step up to the end of each sequence: `starts` without its 0
    kv_lengths: tuple[int, ...]  # positions of each sequence when the step is done
