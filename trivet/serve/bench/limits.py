"""What this machine can do at best: how fast its threads read memory, and how fast they multiply and add."""

from __future__ import annotations

from collections.abc import Sequence

from trivet._native import Team, multiply_add_peak, read_bandwidth
from trivet.base.units import MIB
from trivet.serve.bench.figure import Measurement

_MEMORY_BYTES = 512 * MIB  # beyond any cache


def memory_speeds(cpus: Sequence[int], repeats: int) -> list[float]:
    """Bytes per second of one thread on each of `cpus` reading memory together, for each repeat."""
    return read_bandwidth(Team(list(cpus)), _MEMORY_BYTES, repeats)


def measure_limits(cpus: Sequence[int], target: str, repeats: int, when: str) -> list[Measurement]:
    """All of them; `when` in the run, so that a machine that changed its mind meanwhile shows."""
    memory = memory_speeds(cpus, repeats)
    singles, halves = (multiply_add_peak(Team(list(cpus)), target, dtype, repeats) for dtype in ("float32", "bfloat16"))
    settings = {"when": when}
    return [
        Measurement("limits", "memory", "bytes/s", tuple(memory), settings=settings),
        Measurement("limits", "multiply-add", "FLOP/s", tuple(singles), settings=settings),
        Measurement("limits", "bfloat16 multiply-add", "FLOP/s", tuple(halves), settings=settings),
    ]
