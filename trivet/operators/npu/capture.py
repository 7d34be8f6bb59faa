"""Calls in a captured graph whose arguments on the host change from step to step.

A captured task keeps the lengths of its capture. So such a call is captured as a group of tasks behind an external
event: each step makes the group anew with its own lengths, on a stream beside the graph's, and records the event. A
replay waits there until that has happened, and resets the event for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from trivet.operators.torch.lengths import StepLengths

# What the calls of one captured graph share, because they run one after the other: their workspace.
Workspaces = dict[tuple[object, ...], torch.Tensor]
# Makes the call again, into the same outputs, for other lengths of as many sequences.
Again = Callable[[StepLengths], None]


@runtime_checkable
class LengthDependent(Protocol):
    """A Run that hands the step's lengths to the device as numbers of the host."""

    def __call__(self, inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]: ...

    def fixed(
        self, inputs: Sequence[torch.Tensor | None], lengths: StepLengths, workspaces: Workspaces
    ) -> tuple[list[torch.Tensor], Again]:
        """Its outputs, reserved and not computed, and the call that computes them."""
        ...


@dataclass(frozen=True)
class Update:
    """A group of captured tasks that each step makes anew."""

    group: Any  # torch_npu's handle
    made: torch.npu.ExternalEvent
    again: Again

    def apply(self, stream: torch.npu.Stream, lengths: StepLengths) -> None:
        """Enqueue the group with the lengths of this step on `stream`, the current one, and let its replay go on."""
        torch.npu.graph_task_update_begin(stream, self.group)
        self.again(lengths)
        torch.npu.graph_task_update_end(stream)
        self.made.record(stream)


def capture(again: Again, lengths: StepLengths) -> Update:
    """`again` as a group of the capture that is under way on the current stream."""
    stream = torch.npu.current_stream()
    made = torch.npu.ExternalEvent()
    made.wait(stream)
    made.reset(stream)
    torch.npu.graph_task_group_begin(stream)
    again(lengths)
    return Update(torch.npu.graph_task_group_end(stream), made, again)


def refuse_capture(operator: str, variant: str) -> str | None:
    """Why a node that got `variant` cannot be part of a captured graph."""
    if operator == "attention" and variant not in ("ragged", "batched"):
        return f"attention got the variant {variant}, whose shapes follow the lengths of the step"
    return None
