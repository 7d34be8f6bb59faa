"""The native core: programs of kernels bound to addresses, and the threads that run them.

Python owns all memory but a program's scratch; an address given to a program must stay valid, and its contents must be
what the kernel takes, whenever the program runs. A `Team` does not survive `fork`.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

class Team:
    """Worker threads. The thread that runs a program on them sleeps while they work."""

    def __init__(self, cpus: Sequence[int | None]) -> None:
        """One worker per entry, pinned to that cpu (None: not pinned).

        Raises ValueError when there is no entry, or a cpu this process may not run on.
        """
    @property
    def num_threads(self) -> int: ...

class Program:
    """Instructions in order, each bound to addresses."""

    def __init__(self, target: str | None = None) -> None:
        """`target` is one of `targets()`; None is the best. Raises ValueError for any other."""
    @property
    def target(self) -> str: ...
    @property
    def num_instructions(self) -> int: ...
    def add(
        self,
        kernel: str,
        extent: Literal["tokens", "rows"],
        operands: Sequence[tuple[int, int, str]],
        integers: Sequence[int],
        numbers: Sequence[float],
    ) -> None:
        """Append an instruction.

        An operand is (address, bytes from row to row, "float32" | "bfloat16" | "int32"); address 0 is an absent
        optional. Vectors (tokens, positions, starts, rows, weights of norms, bias) are contiguous, panels too: their
        stride is not used. Raises ValueError that says what was given and what the kernel takes.
        """
    def run(
        self,
        team: Team,
        num_tokens: int,
        num_sequences: int,
        num_rows: int,
        seconds: npt.NDArray[np.float64] | None = None,
    ) -> None:
        """Run every instruction in order, without the GIL. The wall time of each is added to `seconds`
        [num_instructions] where given. Raises ValueError for a negative count or a `seconds` of another length."""

class Draw:
    """How the tokens of one sequence are chosen. Whoever makes it has checked the ranges."""

    def __init__(
        self,
        *,
        temperature: float,  # 0: the likeliest
        top_k: int | None,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        logit_bias: Sequence[tuple[int, float]],
        stop_ids: Sequence[int],  # banned before `min_tokens` are generated
        min_tokens: int,
        num_prompt: int,
        num_logprobs: int | None,  # log probabilities of the token and of so many of the likeliest
        seed: int,  # 0 to 2⁶⁴ - 1, as `choice`
        choice: int,
    ) -> None: ...

class Sampler:
    """From rows of logits to tokens, the rows shared out to a team."""

    def __init__(self, team: Team, vocab_size: int, target: str | None = None) -> None:
        """`target` as of a `Program`. Raises ValueError for one that is not supported."""
    @property
    def vocab_size(self) -> int: ...
    def choose(
        self, logits: npt.NDArray[np.float32], rows: Sequence[tuple[Draw, int, int]]
    ) -> list[tuple[int, float | None, list[tuple[int, float]]] | None]:
        """(token, its log probability, the likeliest with theirs) for each row of `logits` [rows, vocab_size].

        A row is (draw, address of the int32 tokens before it, how many). None for a row that has NaN or +inf, or
        nothing finite. Logits are changed and changed back. Raises ValueError for logits of another shape.
        """

def uniform(seed: int, choice: int, position: int) -> float:
    """The number in [0, 1) that belongs to a place: Philox 4x64-10 keyed by (seed, choice), counter at `position`."""

def copy(team: Team, ranges: Sequence[tuple[int, int, int]]) -> None:
    """Copy (to address, from address, bytes) ranges by the team's threads, without the GIL."""

def targets() -> list[str]:
    """The targets of this build that this CPU can run, best first; "scalar" is always the last."""

def read_bandwidth(team: Team, num_bytes: int, repeats: int) -> list[float]:
    """Bytes per second of the team reading a buffer of `num_bytes` of its own, for each repeat."""

def multiply_add_peak(team: Team, target: str | None, repeats: int) -> list[float]:
    """Float32 operations per second of the team, two for each multiply-add, for each repeat."""
