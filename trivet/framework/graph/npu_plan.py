"""A graph bound to an Ascend NPU: steps of few fixed shapes, decodes captured and replayed as a whole.

A step neither allocates nor waits: its integers come from pinned memory on a stream of their own, its logits go to
pinned memory, and only there the host waits. What reads a step otherwise (`profile`, `values`) runs as on any torch
device, call by call and unpadded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from trivet._native import Gate
from trivet.base.dtypes import Array
from trivet.base.units import format_bytes
from trivet.framework.graph.buckets import bucket_of, bucket_sizes, most_padding, padded
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.npu_capture import CapturedStep
from trivet.framework.graph.npu_sender import Sender, room_for
from trivet.framework.graph.plan import Batch, Bring, Limits
from trivet.framework.graph.prefetch import prefetches
from trivet.framework.graph.torch_plan import TorchPlan, plainly
from trivet.operators.contract import Implementation, choose
from trivet.operators.npu.capture import refuse_capture
from trivet.operators.npu.prefetch import prefetch_bytes
from trivet.operators.torch.lengths import StepLengths, cache_rows, step_lengths


class NpuPlan(TorchPlan):
    """A Plan on the NPU `device`.

    Decodes (steps in which every sequence brings one token and its logits are wanted) are captured when the plan is
    bound, one graph for each bucket size, unless `not_captured` says why not. All other steps run call by call, padded
    to a bucket: their products outweigh the launches, and their attention has other shapes each time.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Array] | Bring,
        *,
        limits: Limits,
        num_slots: int,
        slot_tokens: int,
        device: str = "npu:0",
    ) -> None:
        # However many tokens a step may have, its sequences bring no more than their context, or their slots, hold.
        most = min(limits.max_tokens, limits.max_sequences * limits.max_context, num_slots * slot_tokens)
        self._token_sizes, self._row_sizes = bucket_sizes(most), bucket_sizes(limits.max_rows)
        self._decode_sizes = bucket_sizes(min(limits.max_tokens, limits.max_sequences, limits.max_rows))
        padding = most_padding(self._token_sizes)
        super().__init__(
            graph,
            weights,
            limits=limits,
            num_slots=num_slots,
            slot_tokens=slot_tokens,
            device=device,
            registered="npu",
            padding=padding,
        )
        self._max_slots = -(-limits.max_context // slot_tokens)
        greatest = _shapes(limits.max_tokens, limits.max_sequences + padding, self._max_slots, limits.max_rows)
        self._sender = Sender(room_for(list(greatest.values())), self._device)
        self._logits = torch.zeros((limits.max_rows, self.vocab_size), dtype=torch.float32).pin_memory()
        self._updates = torch.npu.Stream()
        self._captured: dict[int, CapturedStep] = {}
        for size in reversed(self._token_sizes):  # the greatest first: what it leaves, the smaller ones take
            self.run(self._prefill(size))
        self.not_captured = capture_refusal(graph) or self._capture()
        outcome = self.not_captured or f"decodes of up to {self._decode_sizes[-1]} sequences"
        self.target = f"{self.target}, {'not captured' if self.not_captured else 'captured'}: {outcome}"

    @torch.inference_mode()
    def run(self, batch: Batch, arriving: Sequence[Gate] = ()) -> Array:
        assert not arriving, "what comes in one piece is awaited before a step"
        is_decode = len(batch.tokens) == len(batch.slots) == len(batch.rows) <= self._decode_sizes[-1]
        num_tokens = bucket_of(len(batch.tokens), self._decode_sizes if is_decode else self._token_sizes)
        num_rows = num_tokens if is_decode else bucket_of(len(batch.rows), self._row_sizes)
        given, lengths = self._send_padded(batch, num_tokens, num_rows)
        captured = self._captured.get(num_tokens) if is_decode else None
        if captured is None:
            made = self._calls.run(given, plainly(lengths))[0].float()
        else:
            made = captured.replay(lengths, self._updates)
        wanted = self._logits[: len(batch.rows)]
        wanted.copy_(made[: len(wanted)], non_blocking=True)
        torch.npu.current_stream().synchronize()  # the one wait of a step
        logits: Array = wanted.numpy()
        return logits

    def _send_padded(self, batch: Batch, num_tokens: int, num_rows: int) -> tuple[dict[str, torch.Tensor], StepLengths]:
        """`batch` padded, where the device will find it; what is enqueued from now on comes after its copy."""
        step = padded(batch, num_tokens, num_rows, self._max_slots, self.num_slots, self.slot_tokens)
        rows = cache_rows(step.starts, step.positions, step.slots, self.slot_tokens)
        sent = self._sender.send([rows, *vars(step).values()])
        torch.npu.current_stream().wait_event(sent)
        given = self._sender.there(_shapes(num_tokens, len(step.slots), self._max_slots, num_rows))
        return given, step_lengths(step.starts, step.positions, given.pop("cache_rows"))

    def _prefill(self, num_tokens: int) -> Batch:
        """A step of that size, of as few sequences as bring it. They share slots: nobody reads what they write."""
        longest = min(num_tokens, self.limits.max_context, self.num_slots * self.slot_tokens)
        at = np.arange(num_tokens, dtype=np.int32)
        starts = np.append(at[::longest], np.int32(num_tokens))
        slots = np.tile(np.arange(-(-longest // self.slot_tokens), dtype=np.int32), (len(starts) - 1, 1))
        batch = Batch(np.zeros_like(at), at % longest, starts, slots, at[-self.limits.max_rows :])
        return padded(batch, num_tokens, len(batch.rows), self._max_slots, self.num_slots, self.slot_tokens)

    @torch.inference_mode()
    def _capture(self) -> str | None:
        """Capture every decode size; else none, and what the device said against it."""
        pool = torch.npu.graph_pool_handle()
        ahead = prefetches(self.graph, prefetch_bytes(torch.npu.get_device_properties(self._device).name))
        for size in reversed(self._decode_sizes):
            given, lengths = self._send_padded(_nothing(), size, size)
            self._calls.run(given, plainly(lengths))  # what runs for the first time must not do so in a capture
            torch.npu.current_stream().synchronize()
            try:
                self._captured[size] = CapturedStep(self._calls, given, lengths, ahead, pool)
            except RuntimeError as error:
                self._captured.clear()
                return f"a decode of {size} sequences: {str(error).splitlines()[0]}"
        return None

    def close(self) -> None:
        self._captured.clear()
        super().close()


def capture_refusal(graph: Graph) -> str | None:
    """Why no step of `graph` is captured: the first node that cannot be; None where every one can."""
    chosen = ((node.operator, choose(graph.call(node), "npu")) for node in graph.nodes)
    sentences = (refuse_capture(name, one.variant) for name, one in chosen if isinstance(one, Implementation))
    return next((sentence for sentence in sentences if sentence is not None), None)


def explain_steps(graph: Graph, chip: str) -> Iterator[str]:
    """How steps of `graph` run on `chip`: what is captured, what is not and why, what is asked for ahead."""
    refusal, sizes = capture_refusal(graph), ", ".join(map(str, bucket_sizes(64)))
    if refusal is None:
        yield f"decodes: captured for {sizes} and on, up to the most sequences of a step; replayed, padded to the next"
    else:
        yield f"decodes: call by call, padded to {sizes} and on: {refusal}"
    yield (
        "other steps: call by call, padded likewise: their products outweigh the launches, and their attention has "
        "other shapes each time"
    )
    most = prefetch_bytes(chip)
    ahead = () if refusal else prefetches(graph, most)
    if ahead:
        products = sum(node.operator == "linear" for node in graph.nodes)
        yield (
            f"ahead: {len(ahead)} of {products} matrices, behind the product before each, of each up to "
            f"{format_bytes(most)}, half of the L2 of {chip}"
        )
    else:
        yield f"ahead: nothing, {'decodes are not captured' if refusal else f'the L2 of {chip} is not known'}"


def _nothing() -> Batch:
    """A step of padding alone."""
    none = np.zeros(0, np.int32)
    return Batch(none, none, np.zeros(1, np.int32), none.reshape(0, 0), none)


def _shapes(num_tokens: int, num_sequences: int, max_slots: int, num_rows: int) -> dict[str, tuple[int, ...]]:
    """Of what is sent: where the step's tokens are stored, and the fields of the batch."""
    tokens = (num_tokens,)
    return {
        "cache_rows": tokens,
        "tokens": tokens,
        "positions": tokens,
        "starts": (num_sequences + 1,),
        "slots": (num_sequences, max_slots),
        "rows": (num_rows,),
    }
