"""A decode step of one size as a captured graph: replayed as a whole, with the lengths of each step put in anew.

The memory of the graph is that of its capture, shared with the graphs of the other sizes: they run one at a time, and
what one leaves there the next one overwrites. Only what attention reads and writes stays its own, for the updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trivet.framework.graph.prefetch import Prefetch
from trivet.framework.graph.torch_calls import BoundCall, Inputs, TorchCalls
from trivet.operators.npu.capture import LengthDependent, Update, Workspaces, capture
from trivet.operators.npu.prefetch import prefetch
from trivet.operators.torch.lengths import StepLengths


class CapturedStep:
    """`calls` over inputs that lie at `given` in every step; `lengths` are any of as many sequences.

    Weights are asked for ahead as `ahead` says. `pool` is torch_npu's handle of the memory that is shared. Whatever
    runs for the first time must have run before: a capture may neither wait nor load.
    """

    def __init__(
        self,
        calls: TorchCalls,
        given: Mapping[str, torch.Tensor],
        lengths: StepLengths,
        ahead: Sequence[Prefetch],
        pool: Any,
    ) -> None:
        self._updates: list[Update] = []
        self._graph = torch.npu.NPUGraph()
        workspaces: Workspaces = {}
        asked = {one.behind: one for one in ahead}
        side = torch.npu.Stream()

        def perform(call: BoundCall, inputs: Inputs) -> list[torch.Tensor]:
            if isinstance(call.run, LengthDependent):
                outputs, again = call.run.fixed(inputs, lengths, workspaces)
                self._updates.append(capture(again, lengths))
            else:
                outputs = call.run(inputs, lengths)
            if (one := asked.get(call.node.outputs[0])) is not None:
                _after(torch.npu.current_stream(), side)
                with torch.npu.stream(side):
                    prefetch(calls.weight(one.weight), after=outputs[0], max_bytes=one.num_bytes)
            return outputs

        with torch.npu.graph(self._graph, pool=pool):
            _after(torch.npu.current_stream(), side)
            try:
                self.logits = calls.run(given, perform)[0].float()
            finally:
                _after(side, torch.npu.current_stream())  # a capture leaves no stream behind, not even one that fails

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


def _after(first: torch.npu.Stream, second: torch.npu.Stream) -> None:
    """What is enqueued on `second` from now on comes after what is on `first`."""
    mark = torch.npu.Event()
    mark.record(first)
    second.wait_event(mark)
