"""A graph bound to the CPU: one native program, all its memory reserved before the first step.

A step copies the batch's few integers to where the program reads them and makes one call. Python is not between
operators, and nothing is allocated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np

from trivet._native import Gate, Program, Sampler, Team
from trivet.base.dtypes import Array, item_bytes, storage
from trivet.base.errors import GraphError
from trivet.base.units import align_up
from trivet.framework.graph.fetches import awaited_streams, fetched_streams
from trivet.framework.graph.ir import Graph, Node, continued
from trivet.framework.graph.plan import Batch, Limits, refusal
from trivet.framework.memory.arena import Arena
from trivet.framework.memory.mapped import check_files
from trivet.framework.memory.planner import Lifetime, place
from trivet.framework.memory.slots import SlotLayout
from trivet.operators.contract import OUTSIDE, Implementation, TensorSpec, choose, operator_named, resolve
from trivet.operators.cpu import KernelCall, Operand, append
from trivet.operators.linear import LARGEST
from trivet.operators.panels import PANEL_OUTPUTS

ROW_ALIGNMENT = 64  # a cache line, and the widest vector load


class CpuPlan:
    """A Plan on this host's CPU.

    `weights` are the stored arrays, kept alive and read in place; `slots` says how the KV pool of `num_slots` slots
    is cut. `team` has the worker threads. `kept` are values to keep beside the outputs, for tests (`read`).
    `pool` is another plan's KV pool to use, which that plan gives back; None reserves one.
    Raises GraphError when no kernel takes a node, ResourceError when memory cannot be reserved.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Array],
        *,
        limits: Limits,
        slots: SlotLayout,
        num_slots: int,
        team: Team,
        target: str | None = None,
        kept: tuple[str, ...] = (),
        pool: Arena | None = None,
    ) -> None:
        self.limits = limits
        self.num_slots = num_slots
        self.slot_tokens = slots.slot_tokens
        self.slot_bytes = slots.stride_bytes
        self.pieces = slots.pieces(fetched_streams(graph))
        self._awaited = awaited_streams(graph)
        self.vocab_size = resolve(graph.values[graph.outputs[0]].axes[1], {})
        self.graph = graph
        self._team = team
        self._weights = weights
        self._slots = slots
        self._has_own_pool = pool is None
        self._pool = Arena(slots.pool_bytes(num_slots), "KV pool", "--kv-memory") if pool is None else pool
        self._sizes = _sizes(limits, slots, num_slots)
        placed = _Activations(graph, self._sizes, kept)
        self._activations = Arena(placed.total_bytes, "activations", "--max-step-tokens or --max-sequences")
        self._strides = placed.strides
        self._offsets = placed.offsets
        self._operands: dict[str, Operand] = {}
        self._bind_operands(slots)
        self._program = Program(target)
        self.nodes: list[Node] = []  # those that became an instruction, in order
        for node in graph.nodes:
            if not operator_named(node.operator).is_view and node.operator not in OUTSIDE:
                self._append(node)
        self._inputs = {name: self.view(name) for name in graph.inputs if name in self._offsets}
        self._logits = self.view(graph.outputs[0])
        self.sampler = self._sampler(team)

    @property
    def target(self) -> str:
        """The kernel target in use: avx512bf16, avx512, avx2, neon or scalar."""
        return self._program.target

    @property
    def activation_bytes(self) -> int:
        return self._activations.num_bytes

    @property
    def pool_bytes(self) -> int:
        return self._pool.num_bytes

    def run(self, batch: Batch, arriving: Sequence[Gate] = ()) -> Array:
        return self._run(batch, None, arriving)

    def profile(self, batch: Batch) -> tuple[Array, Array]:
        """As `run`; also the seconds of each of `nodes`."""
        seconds = np.zeros(len(self.nodes))
        return self._run(batch, seconds), seconds

    def values(self, batch: Batch, names: Sequence[str]) -> dict[str, Array]:
        self.run(batch)
        sizes = {"tokens": len(batch.tokens), "rows": len(batch.rows)}
        return {name: self.view(name)[: sizes[str(self.graph.values[name].axes[0])]].copy() for name in names}

    def moved_bytes(self, batch: Batch) -> None:
        """Native kernels are not watched: what they move is what they were written to."""

    def view(self, name: str) -> Array:
        """The memory of an activation or an input. After a step only outputs and `kept` still hold their values."""
        spec = self.graph.values[name]
        assert spec.dtype is not None
        rows, width = _rows_and_width(spec, self._sizes)
        dtype = storage(spec.dtype)
        stride = self._strides[name] // dtype.itemsize
        # The last row of a part of a wider value ends before its stride does.
        flat = self._activations.view(self._offsets[name], ((rows - 1) * stride + width,), dtype)
        array = np.lib.stride_tricks.as_strided(flat, (rows, width), (self._strides[name], dtype.itemsize))
        return array.reshape(rows) if len(spec.axes) == 1 else array

    def read_slot(self, slot: int, into: Array) -> None:
        into[:] = self._slot(slot)

    def write_slot(self, slot: int, piece: slice, source: Array) -> None:
        self._slot(slot)[piece] = source[piece]

    def beside(self, team: Team, limits: Limits) -> CpuPlan:
        """The same graph with activations of its own on the same weights and KV pool: both may run at once, where no
        slot is written that the other reads. To be closed before this one."""
        return CpuPlan(
            self.graph, self._weights, limits=limits, slots=self._slots, num_slots=self.num_slots, team=team,
            target=self.target, pool=self._pool,
        )  # fmt: skip

    def on(self, team: Team) -> CpuPlan:
        """This plan with another team to run it: they have all memory in common, and do not run at once. To be
        forgotten before this one is closed."""
        other = copy(self)
        other._team, other.sampler = team, self._sampler(team)
        return other

    def forget(self) -> None:
        """Let go of the memory without giving it back; the plan cannot run after it."""
        del self._inputs, self._logits, self._program

    def close(self) -> None:
        """Give the memory back; the plan cannot run after it."""
        self.forget()
        self._activations.close()
        if self._has_own_pool:
            self._pool.close()

    def _run(self, batch: Batch, seconds: Array | None, arriving: Sequence[Gate] = ()) -> Array:
        num_tokens, num_sequences, num_rows = len(batch.tokens), len(batch.slots), len(batch.rows)
        limits = self.limits
        assert num_tokens <= limits.max_tokens and num_sequences <= limits.max_sequences, "a step beyond the limits"
        assert num_rows <= limits.max_rows, "a step beyond the limits"
        inputs = self._inputs
        inputs["tokens"][:num_tokens] = batch.tokens
        inputs["positions"][:num_tokens] = batch.positions
        inputs["starts"][: num_sequences + 1] = batch.starts
        inputs["slots"][:num_sequences, : batch.slots.shape[1]] = batch.slots
        inputs["rows"][:num_rows] = batch.rows
        self._program.run(self._team, num_tokens, num_sequences, num_rows, seconds, arriving)
        check_files()  # weights may be files yet
        return self._logits[:num_rows]

    def _sampler(self, team: Team) -> Sampler:
        head = None
        if LARGEST in self._operands:
            head = self._operands[self.graph.outputs[0]], self._operands[LARGEST], self.limits.max_rows
        return Sampler(team, self.vocab_size, self.target, head)

    def _slot(self, slot: int) -> Array:
        return self._pool.view(slot * self.slot_bytes, (self.slot_bytes,), np.uint8)

    def _bind_operands(self, slots: SlotLayout) -> None:
        """Where every value is: in the activations, in a slot, or in the weights."""
        streams = {stream.name for stream in self.graph.streams}
        for name, spec in self.graph.values.items():
            assert spec.dtype is not None
            if name in self._offsets:
                address = self._activations.address + self._offsets[name]
                self._operands[name] = (address, self._strides[name], spec.dtype)
            elif name in streams:
                self._operands[name] = (self._pool.address + slots.offsets[name], slots.stride_bytes, spec.dtype)
            elif name in self._weights:
                stored = self._weights[name]
                self._operands[name] = (stored.ctypes.data, stored.strides[0], spec.dtype)
        if LARGEST in self._offsets:
            address = self._activations.address + self._offsets[LARGEST]
            self._operands[LARGEST] = (address, self._strides[LARGEST], "float32")
        for node in self.graph.nodes:
            for made, source in continued(node):
                self._operands[made] = self._operands[source]

    def _append(self, node: Node) -> None:
        contract, call = operator_named(node.operator), self.graph.call(node)
        chosen = choose(call, "cpu")
        if not isinstance(chosen, Implementation):
            raise GraphError(refusal(node, "cpu", chosen), "see `trivet operators explain`")
        lowered = chosen.lower(call, self._sizes)
        assert isinstance(lowered, KernelCall)
        names = [a.name for a in (*contract.inputs, *contract.outputs)]
        operands = zip(names, (*node.inputs, *node.outputs), strict=True)
        bound = {argument: self._operands[n] for argument, n in operands if n is not None}
        if LARGEST in self._operands and self.graph.outputs[0] in node.outputs:
            bound[LARGEST] = self._operands[LARGEST]
        # Refused for a kernel that does not wait for what it reads.
        stream = next((self._awaited[name] for name in node.names if name in self._awaited), None)
        try:
            append(self._program, lowered, bound, stream)
        except ValueError as error:  # the native program's own refusal
            raise GraphError(f"{', '.join(node.outputs)}: {error}", "see `trivet operators explain`") from None
        self.nodes.append(node)


def activation_bytes(graph: Graph, limits: Limits, slots: SlotLayout) -> int:
    """What a plan of `graph` within these limits reserves for activations, told without binding one."""
    return _Activations(graph, _sizes(limits, slots, 1), ()).total_bytes


def _sizes(limits: Limits, slots: SlotLayout, num_slots: int) -> dict[str, int]:
    """The sizes of named axes that memory is reserved for."""
    return {
        "tokens": limits.max_tokens,
        "rows": limits.max_rows,
        "sequences": limits.max_sequences,
        "sequence_starts": limits.max_sequences + 1,
        "max_slots": slots.slots_for(limits.max_context),
        "num_slots": num_slots,
        "slot_tokens": slots.slot_tokens,
    }


def _head(graph: Graph) -> Node | None:
    """The product that the logits are; None where another operator makes them."""
    made_last = next((node for node in reversed(graph.nodes) if graph.outputs[0] in node.outputs), None)
    return made_last if made_last is not None and made_last.operator == "linear" else None


class _Activations:
    """Where in one arena the batch's inputs and the values between operators lie, and what a head finds of its logits
    for the sampler."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int], kept: tuple[str, ...]) -> None:
        part_of = _views(graph)
        last_use = {name: i for i, node in enumerate(graph.nodes) for name in node.names}
        last_use.update(dict.fromkeys((*graph.outputs, *kept), len(graph.nodes)))
        caches = {stream.name for stream in graph.streams}
        batch = [name for name in graph.inputs if name not in caches]
        caches.update(made for node in graph.nodes for made, _ in continued(node))
        made = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs}
        parts: dict[str, list[str]] = defaultdict(list)
        for part, (whole, _) in part_of.items():
            parts[whole].append(part)
        self.strides: dict[str, int] = {}
        lifetimes = [
            Lifetime(name, self._bytes(name, graph.values[name], sizes), -1, len(graph.nodes)) for name in batch
        ]
        for name, first in made.items():
            if name in caches or name in part_of:
                continue
            last = max(last_use.get(user, first) for user in (name, *parts[name]))
            lifetimes.append(Lifetime(name, self._bytes(name, graph.values[name], sizes), first, last))
        if _head(graph) is not None:
            rows, vocab_size = graph.values[graph.outputs[0]].axes
            spec = TensorSpec((rows, -(-resolve(vocab_size, {}) // PANEL_OUTPUTS)), "float32")
            first = made[graph.outputs[0]]
            lifetimes.append(Lifetime(LARGEST, self._bytes(LARGEST, spec, sizes), first, len(graph.nodes)))
        placement = place(lifetimes, alignment=ROW_ALIGNMENT)
        self.offsets = dict(placement.offsets)
        self.total_bytes = placement.total_bytes
        for part, (whole, column_bytes) in part_of.items():
            self.offsets[part] = self.offsets[whole] + column_bytes
            self.strides[part] = self.strides[whole]

    def _bytes(self, name: str, spec: TensorSpec, sizes: Mapping[str, int]) -> int:
        assert spec.dtype is not None
        rows, width = _rows_and_width(spec, sizes)
        row_bytes = width * item_bytes(spec.dtype)
        self.strides[name] = row_bytes if len(spec.axes) == 1 else align_up(row_bytes, ROW_ALIGNMENT)
        return rows * self.strides[name]


def _views(graph: Graph) -> dict[str, tuple[str, int]]:
    """Values that are columns of another: part → (whole, first byte within a row)."""
    part_of: dict[str, tuple[str, int]] = {}
    for node in graph.nodes:
        if not operator_named(node.operator).is_view:
            continue
        column_bytes, whole = 0, node.inputs[0]
        assert whole is not None and whole not in part_of, "a part of a part"
        for name in node.outputs:
            part_of[name] = (whole, column_bytes)
            spec = graph.values[name]
            assert spec.dtype is not None
            column_bytes += resolve(spec.axes[1], {}) * item_bytes(spec.dtype)
    return part_of


def _rows_and_width(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, int]:
    """A one-axis value is rows of one element."""
    rows = resolve(spec.axes[0], sizes)
    return rows, 1 if len(spec.axes) == 1 else resolve(spec.axes[1], sizes)
