"""Does a package that has just been written keep its word? Every byte is read again, every law checked, a prompt run.

It changes nothing, and says what it did not look at and why.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash

from trivet.base.dtypes import Array
from trivet.base.errors import CheckpointError, ResourceError
from trivet.base.units import MIB, format_bytes
from trivet.driver.devices.device import DeviceName
from trivet.driver.devices.table import open_device
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.graph.binding import BINDINGS, Request
from trivet.framework.graph.cost import stream_bytes
from trivet.framework.graph.laws import check
from trivet.framework.graph.plan import Batch, BoundPlan, Limits
from trivet.framework.graph.profile import one_sequence
from trivet.framework.memory.slots import lay_out
from trivet.framework.model.chat_template import ChatTemplate
from trivet.framework.model.checkpoints.checkpoint import read_bytes
from trivet.framework.model.manifest import Manifest
from trivet.framework.model.package import Package, damaged, map_package
from trivet.framework.model.tokenizer import Tokenizer
from trivet.framework.model.tokenizer_files import read_tokenizer_files

QUESTION = "What is the capital of France?"

_READ_BYTES = 32 * MIB
_CUT = 3  # tokens of the first step where the prompt is cut: where no block of rows or of cache ends


@dataclass(frozen=True)
class NodeTime:
    """What one node of the graph took in the step of the prompt."""

    value: str  # its first output
    operator: str
    seconds: float


@dataclass(frozen=True)
class Verification:
    num_bytes: int  # read again, with the checksums that were written
    num_nodes: int  # of the graph, whose laws hold
    prompt: tuple[int, ...] = ()  # the known prompt; empty when it was not run
    next_token: int | None = None  # the greedy one after it
    node_times: tuple[NodeTime, ...] = ()  # the slowest first
    not_run: str | None = None  # why the prompt was not


def verify(
    folder: Path, manifest: Manifest, device: DeviceName, memory_bytes: int | None, done: Callable[[int], None]
) -> Verification:
    """Read all of the package's weights again, check its template and its graph's laws, run a prompt through its plan.

    The prompt is run when the weights fit `memory_bytes` (None: what is free), and the device's library is here. Raises
    CheckpointError for other bytes than were written, a template that does not compile or a wrong answer, GraphError
    for a law.
    """
    num_bytes = _read_again(folder, manifest, done)
    ChatTemplate(read_tokenizer_files(folder, {})).compile()
    check(manifest.graph, "conversion")
    done_so_far = Verification(num_bytes, len(manifest.graph.nodes))
    if manifest.num_ranks > 1:
        return replace(done_so_far, not_run=f"no process has all of what is cut for {manifest.num_ranks} ranks")
    host = open_device("cpu", read_placement_facts())
    limit = min((size for size in (memory_bytes, host.memory_bytes) if size is not None), default=num_bytes)
    if num_bytes > limit:
        return replace(done_so_far, not_run=f"{format_bytes(num_bytes)} of weights, {format_bytes(limit)} of memory")
    package = map_package(folder, manifest, verify=False, rank=0)
    prompt = _prompt(package)
    try:
        plan = _bind(package, device, len(prompt), host.cpus)
    except ResourceError as error:  # the device's library, or the device, is not on this host
        return replace(done_so_far, not_run=error.message)
    try:
        logits, times = _answer(plan, prompt, is_exact=device == "cpu")
    finally:
        plan.close()
    return replace(done_so_far, prompt=prompt, next_token=int(logits.argmax()), node_times=times)


def _read_again(folder: Path, manifest: Manifest, done: Callable[[int], None]) -> int:
    """Hash what storage gives back, not what the page cache still has, where the kernel can be asked to forget."""
    for file in manifest.shards:
        with (folder / file).open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    num_bytes = 0
    for name, pieces in manifest.tensors.items():
        for piece in pieces:
            hasher = xxhash.xxh3_64()
            for start in range(0, piece.bytes, _READ_BYTES):
                block = read_bytes(folder / piece.shard, piece.offset + start, min(_READ_BYTES, piece.bytes - start))
                hasher.update(block.data)
                done(block.nbytes)
            if hasher.hexdigest() != piece.xxh3:
                raise damaged(folder / piece.shard, name, piece, hasher.hexdigest())
            num_bytes += piece.bytes
    return num_bytes


def _prompt(package: Package) -> tuple[int, ...]:
    prompt = tuple(Tokenizer(package.tokenizer).encode(QUESTION, add_special=True))[: package.config.max_context]
    if not prompt or max(prompt) >= package.config.vocab_size:
        raise CheckpointError(
            f"tokenizer.json: token {max(prompt, default=None)} of {QUESTION!r} is not among the vocab_size "
            f"{package.config.vocab_size} of config.json",
            "the tokenizer is that of another model: take all files from one publisher",
        )
    return prompt


def _bind(package: Package, device: DeviceName, num_tokens: int, cpus: tuple[int, ...]) -> BoundPlan:
    binding = BINDINGS[device]
    layout = lay_out(stream_bytes(package.graph), slot_tokens=binding.slot_tokens)
    limits = Limits(num_tokens, 1, 1, num_tokens)
    num_slots = layout.slots_for(num_tokens)
    return binding.bind(Request(package.graph, package.weights, limits, layout, num_slots, cpus, cpu_target=None))


def _answer(plan: BoundPlan, prompt: tuple[int, ...], is_exact: bool) -> tuple[Array, tuple[NodeTime, ...]]:
    """The last token's logits and what each node took; CheckpointError when they are no answer."""
    logits = plan.run(_batch(plan, prompt, 0))[-1].copy()
    seconds = plan.profile(_batch(plan, prompt, 0))[1]  # of a second run: the first touches memory for the first time
    if not np.isfinite(logits).all():
        raise CheckpointError(
            f"the model's answer to {QUESTION!r} has logits that are no numbers",
            "its weights overflow: see from which layer on with: trivet accuracy",
        )
    if is_exact and len(prompt) > _CUT:
        plan.run(_batch(plan, prompt[:_CUT], 0))
        again = plan.run(_batch(plan, prompt[_CUT:], _CUT))[-1].copy()
        if not np.array_equal(logits, again):
            raise CheckpointError(
                f"the model's answer to {QUESTION!r} is another when the prompt is cut in two",
                "trivet operators verify",
            )
    times = (
        NodeTime(node.outputs[0], node.operator, float(took)) for node, took in zip(plan.nodes, seconds, strict=True)
    )
    return logits, tuple(sorted(times, key=lambda each: -each.seconds))


def _batch(plan: BoundPlan, tokens: tuple[int, ...], past: int) -> Batch:
    return replace(one_sequence(len(tokens), past, plan.slot_tokens), tokens=np.asarray(tokens, np.int32))
