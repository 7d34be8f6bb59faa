"""A decode step of one size as a captured graph: replayed as a whole, with the lengths of each step put in anew.

The memory of the graph is that of its capture, shared with the graphs of the other sizes: they run one at a time, and
what one leaves there the next one overwrites. Only what attention reads and writes stays its own, for the updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trivet.framework.graph.torch_calls import BoundCall, Inputs, TorchCalls
from trivet.operators.npu.capture import LengthDependent, Update, Workspaces, capture
from trivet.operators.torch.lengths import StepLengths


class CapturedStep:
    """`calls` over inputs that lie at `given` in every step; `lengths` are any of as many sequences.

    `pool` is torch_npu's handle of the memory that is shared. Whatever runs for the first time must have run before:
    a capture may neither wait nor load.
    """

    def __init__(self, calls: TorchCalls, given: Mapping[str, torch.Tensor], lengths: StepLengths, pool: Any) -> None:
        self._updates: list[Update] = []
        self._graph = torch.npu.NPUGraph()
        workspaces: Workspaces = {}

        def perform(call: BoundCall, inputs: Inputs) -> list[torch.Tensor]:
            if not isinstance(call.run, LengthDependent):
                return call.run(inputs, lengths)
            outputs, again = call.run.fixed(inputs, lengths, workspaces)
            self._updates.append(capture(again, lengths))
            return outputs

        with torch.npu.graph(self._graph, pool=pool):
            self.logits = calls.run(given, perform)[0].float()

    def replay(self, lengths: StepLengths, updates: torch.npu.Stream) -> torch.Tensor:
        """Enqueue the step on the current stream; its logits, overwritten by the next replay.

        The updates come after the replay, layer by layer on their own stream, while it runs: each attention waits for
        its own. They cannot overtake the replay before, whose logits the host has read.
        """
        self._graph.replay()
        with torch.npu.stream(updates):
            for update in self._updates:
                update.apply(updates, lengths)
        return self.logits
