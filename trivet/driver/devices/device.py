"""A device: what a plan is bound to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DeviceName = Literal["cpu", "torch", "npu"]  # as a plan is asked for


@dataclass(frozen=True)
class Device:
    """Where a model runs: the processor, its CPUs and its memory."""

    kind: Literal["cpu"]
    name: str  # for people: the processor's name
    memory_bytes: int | None  # what may be allocated on it now; None if unknown
    cpus: tuple[int, ...]  # where its threads are pinned, one each and in order
    numa_node: int | None  # where its memory should come from; None if no one node is best
    reason: str  # why these CPUs
