"""The slow truth: a graph run through its operators' references, node by node, in float64.

Each value is rounded to its format as it is made, so a bfloat16 cache is one here too. It is what other plans are
compared with, on small models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trivet._native import Gate
from trivet.base.dtypes import Array, DType, cast
from trivet.framework.graph.ir import Graph, continued
from trivet.framework.graph.plan import Batch, Limits
from trivet.operators.contract import operator_named, resolve
from trivet.operators.panels import unpack_panels


class ReferencePlan:
    """A Plan whose every step can be read. `weights` are arrays as stored: in their format and layout."""

    def __init__(
        self, graph: Graph, weights: Mapping[str, Array], *, limits: Limits, num_slots: int, slot_tokens: int
    ) -> None:
        self.limits = limits
        self.num_slots = num_slots
        self.slot_tokens = slot_tokens
        self.vocab_size = resolve(graph.values[graph.outputs[0]].axes[1], {})
        self._graph = graph
        self._weights = {name: _logical(graph, name, stored) for name, stored in weights.items()}
        sizes = {"num_slots": num_slots, "slot_tokens": slot_tokens}
        self._caches: dict[str, Array] = {
            stream.name: np.zeros([resolve(axis, sizes) for axis in graph.values[stream.name].axes])
            for stream in graph.streams
        }

    def run(self, batch: Batch, arriving: Sequence[Gate] = ()) -> Array:
        for gate in arriving:
            gate.wait(len(self._caches) * gate.num_slots)
        return self.trace(batch)[self._graph.outputs[0]].astype(np.float32)

    def trace(self, batch: Batch) -> dict[str, Array]:
        """Every value of the step by name, in float64."""
        graph = self._graph
        values: dict[str, Array] = {**self._weights, **self._caches, **vars(batch)}
        stream_of = {stream.name: stream.name for stream in graph.streams}
        for node in graph.nodes:
            operator, call = operator_named(node.operator), graph.call(node)
            inputs = [None if name is None else values[name] for name in node.inputs]
            outputs = operator.reference(call, inputs)
            for name, spec, output in zip(node.outputs, call.outputs, outputs, strict=True):
                assert spec.dtype is not None
                values[name] = _rounded(output, spec.dtype)
            for after, before in continued(node):
                stream_of[after] = stream_of[before]
                self._caches[stream_of[after]] = values[after]
        return values


def _logical(graph: Graph, name: str, stored: Array) -> Array:
    spec = graph.values[name]
    assert spec.dtype is not None
    rows = stored
    if spec.layout == "panels":
        outputs, inputs = (resolve(axis, {}) for axis in spec.axes)
        rows = unpack_panels(stored, outputs, inputs)
    return cast(rows, spec.dtype, "float32").astype(np.float64)


def _rounded(values: Array, dtype: DType) -> Array:
    if values.dtype.kind != "f":
        return values
    stored = cast(values.astype(np.float32), "float32", dtype)
    return cast(stored, dtype, "float32").astype(np.float64)
