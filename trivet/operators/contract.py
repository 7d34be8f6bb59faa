"""What an operator is: axes with names, dtypes, a slow reference, samples, a tolerance, the fewest bytes it must move.

An operator knows nothing of graphs or models. Implementations for a device register beside the contract and refuse
a call with a sentence; they never fall back silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from trivet.base.dtypes import Array, DType, row_bytes
from trivet.base.errors import GraphError

Axis = int | str  # a number, or the name of a size known only at run time: "tokens", "rows", "sequences"
Attribute = int | float | str | tuple[int, ...]

# How the bytes of a tensor lie.
#   rows    row-major, the last axis contiguous
#   panels  a [out, in] matrix by 32 outputs and their inputs: as a kernel streams it (see operators/panels.py)
#   kv      a stream of the KV pool inside its slots (see operators/kv_layout.py)
#   blocks  a stream of the KV pool as one tensor [2, slots, slot_tokens, kv_heads, head_dim]: keys, then values
Layout = Literal["rows", "panels", "kv", "blocks"]

FLOATS: tuple[DType, ...] = ("float32", "bfloat16")
WEIGHTS: tuple[DType, ...] = (*FLOATS, "int8")  # of the matrices that are multiplied with


@dataclass(frozen=True)
class TensorSpec:
    """Shape, format and layout of a value. `dtype` is None until the precision pass has assigned it."""

    axes: tuple[Axis, ...]
    dtype: DType | None = None
    layout: Layout = "rows"

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """How many bytes the value takes when the named axes have these sizes."""
        assert self.dtype is not None, "a value has bytes only once it has a dtype"
        *outer, width = (resolve(axis, sizes) for axis in self.axes)
        return prod(outer) * row_bytes(width, self.dtype)


def resolve(axis: Axis, sizes: Mapping[str, int]) -> int:
    return axis if isinstance(axis, int) else sizes[axis]


@dataclass(frozen=True)
class Argument:
    """One input or output. `axes` are names; the same name must be the same size everywhere in the contract."""

    name: str
    axes: tuple[str, ...]
    dtypes: tuple[DType, ...] = FLOATS
    layouts: tuple[Layout, ...] = ("rows",)
    is_optional: bool = False  # an input that may be absent; an output made only where `infer` sizes it


@dataclass(frozen=True)
class Call:
    """An operator applied: what an implementation sees of a node."""

    operator: str
    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def integer(self, name: str) -> int:
        value = self.attributes[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        value = self.attributes[name]
        assert isinstance(value, int | float)
        return float(value)


@dataclass(frozen=True)
class Sample:
    """Inputs a contract is tested with: arrays in the storage of the call's dtypes, and the named sizes."""

    call: Call
    inputs: tuple[Array | None, ...]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Tolerance:
    """How far an implementation may be from the reference: |error| ≤ absolute + relative · |reference|.

    With bfloat16 rows `HALF` is added to both: each factor and the result are rounded, by 2⁻⁹ of themselves, and a sum
    of rounded products of order one may cancel. What is stored in int8 may be off by `steps` of its group beside that,
    and what is made of an input in a format that is in `beside` by so much.
    """

    absolute: float
    relative: float
    reason: str
    steps: int = 0
    beside: Mapping[DType, float] = field(default_factory=dict)

    HALF: ClassVar[float] = 2.0**-6

    def allows(self, reference: Array, activations: DType, call: Call) -> Array:
        """The largest error allowed at each element of `reference`, for activations in that format. Nothing is relative
        to an infinity or a NaN: they are to be met."""
        half = self.HALF if activations == "bfloat16" else 0.0
        beside = max((self.beside.get(spec.dtype, 0.0) for spec in call.inputs if spec and spec.dtype), default=0.0)
        size = np.where(np.isfinite(reference), np.abs(reference), 0.0)
        allowed: Array = self.absolute + half + beside + (self.relative + half) * size
        return allowed


Reference = Callable[[Call, Sequence[Array | None]], list[Array]]
Infer = Callable[[Mapping[str, Axis], Mapping[str, Attribute]], Mapping[str, Axis]]
Cost = Callable[[Call, Mapping[str, int]], int]


@dataclass(frozen=True)
class Operator:
    """A contract. Everything else about the operator (tests, costs, docs) is derived from it."""

    name: str
    summary: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    reference: Reference  # float64 (or integer) arrays in, float64 out; logical shapes, whatever the layout
    samples: Callable[[np.random.Generator], Iterator[Sample]]
    tolerance: Tolerance
    flops: Cost
    attributes: tuple[str, ...] = ()
    infer: Infer | None = None  # sizes of output axes that no input names; raises GraphError with the reason
    fewest_bytes: Cost | None = None  # None: every input read once, every output written once
    is_view: bool = False  # outputs are parts of the input's own bytes
    updates: Mapping[str, str] = field(default_factory=dict)  # output → the input whose storage it writes to, unread
    promise: str = "on the CPU a row's bits follow from its own sequence alone"  # of determinism

    def bytes(self, call: Call, sizes: Mapping[str, int]) -> int:
        """The fewest bytes the contract allows to be moved for this call."""
        if self.is_view:
            return 0
        if self.fewest_bytes is not None:
            return self.fewest_bytes(call, sizes)
        return sum(spec.bytes(sizes) for spec in (*call.inputs, *call.outputs) if spec is not None)

    def output_specs(
        self, inputs: Sequence[TensorSpec | None], attributes: Mapping[str, Attribute]
    ) -> tuple[TensorSpec, ...]:
        """Axes of the outputs, from axes of the inputs. Dtypes follow the first input that has one.

        Raises GraphError when arguments are missing, or two uses of an axis disagree.
        """
        sizes = self.bind(inputs)
        for name in self.attributes:
            if name not in attributes:
                raise GraphError(f"{self.name}: attribute {name} is missing")
        if self.infer is not None:
            sizes = {**sizes, **self.infer(sizes, attributes)}
        specs = []
        for argument in self.outputs:
            source = self.updates.get(argument.name)
            if source is not None:
                spec = inputs[[a.name for a in self.inputs].index(source)]
                assert spec is not None
                specs.append(spec)
                continue
            if argument.is_optional and any(axis not in sizes for axis in argument.axes):
                continue
            specs.append(TensorSpec(tuple(sizes[axis] for axis in argument.axes)))
        return tuple(specs)

    def bind(self, inputs: Sequence[TensorSpec | None]) -> dict[str, Axis]:
        """The size of every named axis; raises GraphError where two uses disagree."""
        if len(inputs) != len(self.inputs):
            raise GraphError(f"{self.name}: {len(inputs)} inputs given, it takes {len(self.inputs)}")
        sizes: dict[str, Axis] = {}
        for argument, spec in zip(self.inputs, inputs, strict=True):
            if spec is None:
                if not argument.is_optional:
                    raise GraphError(f"{self.name}: input {argument.name} is missing")
                continue
            if len(spec.axes) != len(argument.axes):
                raise GraphError(
                    f"{self.name}: {argument.name} has {len(spec.axes)} axes, it takes {len(argument.axes)}"
                    f" ({', '.join(argument.axes)})"
                )
            for axis, size in zip(argument.axes, spec.axes, strict=True):
                known = sizes.setdefault(axis, size)
                if known != size:
                    raise GraphError(f"{self.name}: axis {axis} is {size} in {argument.name}, {known} before")
        return sizes


@dataclass(frozen=True)
class Implementation:
    """An operator on a device. `refuse` gives the reason a call is not taken, or None.

    `lower` turns an accepted call into what the device's plan runs, once the sizes that are fixed when a plan is bound
    (`slot_tokens`) are known; its type belongs to the device.
    """

    operator: str
    device: str
    variant: str
    refuse: Callable[[Call], str | None]
    lower: Callable[[Call, Mapping[str, int]], Any]
    # What the device makes of a weight once, at load: (call, argument, weight as stored) → weight as `lower` wants it.
    prepare: Callable[[Call, str, Any], Any] | None = None


OPERATORS: dict[str, Operator] = {}
OUTSIDE: dict[str, Operator] = {}  # what a graph knows of and no device computes: the host does it beside the step
IMPLEMENTATIONS: dict[tuple[str, str], list[Implementation]] = {}


def register(operator: Operator, registry: dict[str, Operator] = OPERATORS) -> Operator:
    assert operator.name not in {*OPERATORS, *OUTSIDE}, f"operator {operator.name} is registered twice"
    registry[operator.name] = operator
    return operator


def implement(implementation: Implementation) -> Implementation:
    IMPLEMENTATIONS.setdefault((implementation.operator, implementation.device), []).append(implementation)
    return implementation


def operator_named(name: str) -> Operator:
    operator = OPERATORS.get(name) or OUTSIDE.get(name)
    if operator is None:
        raise GraphError(f"operator {name!r} is not known", f"known: {', '.join(sorted([*OPERATORS, *OUTSIDE]))}")
    return operator


def choose(call: Call, device: str) -> Implementation | list[tuple[str, str]]:
    """The first implementation on `device` that takes `call`, else who refused and with what sentence."""
    refusals = []
    for implementation in IMPLEMENTATIONS.get((call.operator, device), []):
        reason = implementation.refuse(call)
        if reason is None:
            return implementation
        refusals.append((implementation.variant, reason))
    return refusals


def with_dtype(spec: TensorSpec, dtype: DType) -> TensorSpec:
    return replace(spec, dtype=dtype)
