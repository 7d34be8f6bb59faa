"""What `--probe` tried, since no file tells it: reading, locking memory, running the stack. A part of `HostFacts`.

Where nothing was tried there is nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ReadingProbe:
    """What reading the first MiB of a file showed; made only where it was asked for."""

    path: str  # that was asked for
    file: str | None  # that was read; None where there is none below the path
    direct_refusal: str | None  # the kernel's word where it cannot be read with O_DIRECT
    ring_refusal: str | None  # and where this process gets no io_uring
    num_bytes: int | None  # None where reading failed or took too long
    seconds: float | None
    interrupts: dict[str, int] | None  # of all disks meanwhile, by name, whoever caused them


@dataclass(frozen=True)
class PinningProbe:
    """Whether this process could lock memory; made only where it was asked for."""

    asked_bytes: int
    is_locked: bool
    refusal: str | None  # the kernel's word where not


# In the order in which they are tried; each may be the last that a child lived to tell of.
Step = Literal[
    "acl", "device count", "device", "soc name", "torch", "torch_npu", "torch devices", "arithmetic", "mindspore"
]


@dataclass(frozen=True)
class Trial:
    """One thing that a child of the serving interpreter did."""

    step: Step
    outcome: Literal["done", "failed", "timed_out", "died", "absent"]
    said: str | None  # what it gives, or the last line of its complaint
    seconds: float | None

    @property
    def how(self) -> str:
        """What became of it, in the words of the stack itself, which come in no other language."""
        if self.outcome == "timed_out":
            return f"no answer within {self.seconds or 0:.0f} s"
        return self.said or self.outcome


@dataclass(frozen=True)
class StackProbe:
    """The stack as the serving interpreter runs it, in children of its own."""

    executable: str
    trials: tuple[Trial, ...]

    def get(self, step: Step) -> Trial | None:
        return next((trial for trial in self.trials if trial.step == step), None)


@dataclass(frozen=True)
class MasterProbe:
    """Whether the address of MASTER_ADDR and MASTER_PORT, where the ranks of a job meet, took a connection."""

    address: str  # "10.0.0.1:29500"
    refusal: str | None
