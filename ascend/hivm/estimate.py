"""What each pipe was given, counted, and cycles made of it at stated rates. The counts are exact; the cycles are an
estimate: no start of an instruction, no latency, no bank conflict and no measurement is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ascend.hivm.order import PIPES, Access, Event

# A vector instruction works through its data 256 bytes at a time (Ascend C's documentation of repeats).
_VECTOR_BYTES = 256
# HBM of a 910B3 as Huawei's own modelling has it, shared by its 40 vector cores at the 1.8 GHz of its platform file.
_GLOBAL_BYTES = 1.6 * 2**40 / 40 / 1.8e9


@dataclass(frozen=True)
class Work:
    """Operations of one pipe and the bytes they touch: of both sides for vectors, of one for a transfer."""

    operations: int
    num_bytes: int
    estimated_cycles: float

    def __str__(self) -> str:
        return f"{self.operations} operations {self.num_bytes} bytes ~{self.estimated_cycles:.0f} cycles"


def work(trace: Sequence[Event]) -> dict[str, Work]:
    """Pipe → what one program gave it. Scalar accesses are counted and not timed."""
    counted = {}
    for pipe in PIPES:
        accesses = [event for event in trace if isinstance(event, Access) and event.pipe == pipe]
        cycles, num_bytes = 0.0, 0
        for access in accesses:
            sides = [footprint.num_bytes for footprint in (*access.reads, *access.writes)]
            if pipe == "PIPE_V":
                num_bytes += sum(sides)
                cycles += -(-max(sides) // _VECTOR_BYTES)
            else:
                num_bytes += sides[0]
                cycles += 0.0 if pipe == "PIPE_S" else sides[0] / _GLOBAL_BYTES
        counted[pipe] = Work(len(accesses), num_bytes, cycles)
    return counted
