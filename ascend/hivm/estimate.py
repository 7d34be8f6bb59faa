"""What each pipe was given, counted, and cycles made of it at stated rates. The counts are exact; the cycles are an
estimate: no start of an instruction, no latency, no bank conflict and no measurement is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

from ascend.hivm.cores import Pipe, pipes
from ascend.hivm.order import Access, Event, cores_of

# A vector instruction works through its data 256 bytes at a time (Ascend C's documentation of repeats).
_VECTOR_BYTES = 256
# HBM of a 910B3 as Huawei's own modelling has it, shared by its 40 vector cores at the 1.8 GHz of its platform file.
_GLOBAL_BYTES = 1.6 * 2**40 / 40 / 1.8e9
# A cube core multiplies two fractals a cycle: 16·16·16 in a half, which with its clock gives the chip's known peak.
_FRACTAL_BYTES, _PRODUCT_BYTES = 512, 1024
_UNTIMED = ("PIPE_S", "PIPE_MTE1")  # counted only: nothing public says how fast they are


@dataclass(frozen=True)
class Work:
    """Operations of one pipe and the bytes they touch: of all sides of a computation, of one of a transfer."""

    operations: int
    num_bytes: int
    estimated_cycles: float

    def __str__(self) -> str:
        return f"{self.operations} operations {self.num_bytes} bytes ~{self.estimated_cycles:.0f} cycles"


def work(trace: Sequence[Event]) -> dict[Pipe, Work]:
    """Pipe → what one program gave it."""
    counted = {}
    for pipe in (pipe for core in cores_of(trace) for pipe in pipes(core)):
        accesses = [event for event in trace if isinstance(event, Access) and event.pipe == pipe]
        counted[pipe] = Work(
            len(accesses),
            sum(map(_num_bytes, accesses)),
            sum(map(_cycles, accesses)) if pipe.name not in _UNTIMED else 0,
        )
    return counted


def _num_bytes(access: Access) -> int:
    sides = [footprint.num_bytes for footprint in (*access.reads, *access.writes)]
    return sum(sides) if access.pipe.name in ("PIPE_V", "PIPE_M") else sides[0]


def _cycles(access: Access) -> float:
    sides = [footprint.num_bytes for footprint in (*access.reads, *access.writes)]
    if access.pipe.name == "PIPE_V":
        return -(-max(sides) // _VECTOR_BYTES)
    if access.pipe.name == "PIPE_M":  # m·k and k·n fractals make m·n of the product: the root of all three is m·k·n
        a, b, made = sides[0] // _FRACTAL_BYTES, sides[1] // _FRACTAL_BYTES, sides[-1] // _PRODUCT_BYTES
        return isqrt(a * b * made)
    return sides[0] / _GLOBAL_BYTES
