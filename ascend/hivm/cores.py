"""The cores that one program of a kernel runs on: their pipes, and the memories that each has to itself.

A vector kernel's program has one vector core. A mixed kernel's has a cube core and the two vector cores beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from trivet.operators.triton.tiles import L0C_BYTES, L1_BYTES, UB_BYTES

Kind = Literal["AIC", "AIV"]  # cube, vector

ALL = "PIPE_ALL"
SCALAR = "PIPE_S"
PIPES: dict[Kind, tuple[str, ...]] = {
    "AIC": (SCALAR, "PIPE_M", "PIPE_MTE1", "PIPE_MTE2", "PIPE_FIX"),
    "AIV": (SCALAR, "PIPE_V", "PIPE_MTE2", "PIPE_MTE3"),
}

L0_BYTES = 64 * 1024  # of L0A, and of L0B: l0_a_size and l0_b_size of the platform files that tiles.py is from
MEMORIES: dict[Kind, dict[str, int]] = {
    "AIC": {"L1": L1_BYTES, "L0A": L0_BYTES, "L0B": L0_BYTES, "L0C": L0C_BYTES},
    "AIV": {"UB": UB_BYTES},
}


class Pipe(NamedTuple):
    """One pipe of one core, or all of them."""

    core: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} of {self.core}"


@dataclass(frozen=True)
class Core:
    """`name` tells it from the others of its program; a vector core beside a cube core has its number in it."""

    kind: Kind
    name: str
    number: int = 0

    def memory(self, name: str) -> str:
        """What a memory of this core is called among those of all."""
        return f"{self.name} {name}"


def cores(kinds: Iterable[Kind]) -> tuple[Core, ...]:
    """Of a kernel that has code for these kinds of cores."""
    if set(kinds) == {"AIC", "AIV"}:
        return (Core("AIC", "AIC"), Core("AIV", "AIV0", 0), Core("AIV", "AIV1", 1))
    return tuple(Core(kind, kind) for kind in kinds)


def pipes(core: str) -> tuple[Pipe, ...]:
    """All the pipes of the core of that name."""
    return tuple(Pipe(core, name) for name in PIPES["AIC" if core.startswith("AIC") else "AIV"])


def beside(core: str) -> tuple[str, ...]:
    """The cores that a core of a mixed kernel tells of its flags, and hears of theirs."""
    return ("AIV0", "AIV1") if core == "AIC" else ("AIC",)


def own_bytes(of: Iterable[Core]) -> dict[str, int]:
    """The memories that no other core reaches, and their sizes."""
    return {core.memory(name): size for core in of for name, size in MEMORIES[core.kind].items()}
