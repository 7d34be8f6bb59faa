"""How far one plan of a model is from another on the same text: in its answers, and layer by layer on the way to them.

The reference is usually float32 on the CPU. Drift has an address: the first layer whose input is off says where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trivet.base.dtypes import Array, DType
from trivet.base.settings import Settings
from trivet.framework.graph.binding import BINDINGS, Request
from trivet.framework.graph.cost import stream_bytes
from trivet.framework.graph.passes import DeviceName
from trivet.framework.graph.plan import Batch, BoundPlan, Limits
from trivet.framework.memory.slots import lay_out
from trivet.framework.model.loader import open_model
from trivet.framework.model.package import Package

_TOP = 5


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    device: DeviceName
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype} on {self.device}"


@dataclass(frozen=True)
class Agreement:
    """What two plans say of the same tokens."""

    num_tokens: int
    mean_error: float  # of logits, absolute
    max_error: float
    mean_kl: float  # nats, of the reference's distribution from the subject's
    max_kl: float
    top_1: float  # share of positions whose likeliest token is the same
    top_5: float  # mean share of the five likeliest that both have
    first_difference: int | None  # the position whose likeliest token differs first
    margin_there: float | None  # how far the reference's first two logits are apart at that position
    layers: tuple[float, ...]  # error of each layer's input, as a share of its own size (root mean square)


def measure(
    model: str, tokens: Sequence[int], subject: Side, reference: Side, cpus: tuple[int, ...], settings: Settings
) -> Agreement:
    """Compare on `tokens`, in one step. Raises as `open_model` and the devices' bindings do."""
    (logits, layers), (wanted, wanted_layers) = (
        _run(model, tokens, side, cpus, settings) for side in (subject, reference)
    )
    return compare(logits, wanted, layers, wanted_layers)


def compare(logits: Array, wanted: Array, layers: Sequence[Array], wanted_layers: Sequence[Array]) -> Agreement:
    """logits, wanted: [tokens, vocab]; layers: the input of each, [tokens, hidden]."""
    error = np.abs(logits.astype(np.float64) - wanted)
    log_p, log_q = _log_softmax(wanted), _log_softmax(logits)
    kl = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    best, wanted_best = logits.argmax(axis=1), wanted.argmax(axis=1)
    differs = np.flatnonzero(best != wanted_best)
    first = int(differs[0]) if len(differs) else None
    top, wanted_top = (np.argpartition(each, -_TOP, axis=1)[:, -_TOP:] for each in (logits, wanted))
    shared = [len(np.intersect1d(a, b)) / _TOP for a, b in zip(top, wanted_top, strict=True)]
    return Agreement(
        num_tokens=len(logits),
        mean_error=float(error.mean()),
        max_error=float(error.max()),
        mean_kl=float(kl.mean()),
        max_kl=float(kl.max()),
        top_1=float((best == wanted_best).mean()),
        top_5=float(np.mean(shared)),
        first_difference=first,
        margin_there=None if first is None else _margin(wanted[first]),
        layers=tuple(_relative_error(a, b) for a, b in zip(layers, wanted_layers, strict=True)),
    )


def _run(
    model: str, tokens: Sequence[int], side: Side, cpus: tuple[int, ...], settings: Settings
) -> tuple[Array, list[Array]]:
    package = open_model(model, device=side.device, dtype=side.dtype, settings=settings)
    inputs = [f"layers.{layer}.input" for layer in range(package.config.num_layers)]
    plan = _bind(package, side, len(tokens), inputs, cpus, settings)
    num_slots = -(-len(tokens) // plan.slot_tokens)
    everything = np.arange(len(tokens), dtype=np.int32)
    batch = Batch(
        tokens=np.asarray(tokens, np.int32),
        positions=everything,
        starts=np.array([0, len(tokens)], np.int32),
        slots=np.arange(num_slots, dtype=np.int32)[None],
        rows=everything,
    )
    (output,) = package.graph.outputs
    values = plan.values(batch, [output, *inputs])
    plan.close()
    return values[output], [values[name] for name in inputs]


def _bind(
    package: Package, side: Side, num_tokens: int, kept: Sequence[str], cpus: tuple[int, ...], settings: Settings
) -> BoundPlan:
    binding = BINDINGS[side.device]
    layout = lay_out(stream_bytes(package.graph), slot_tokens=binding.slot_tokens)
    limits = Limits(num_tokens, 1, num_tokens, num_tokens)
    num_slots = layout.slots_for(num_tokens)
    return binding.bind(
        Request(package.graph, package.weights, limits, layout, num_slots, cpus, settings.cpu_target, tuple(kept))
    )


def _log_softmax(logits: Array) -> Array:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    normalised: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


def _margin(logits: Array) -> float:
    second, first = np.sort(logits)[-2:]
    return float(first - second)


def _relative_error(values: Array, wanted: Array) -> float:
    size = float(np.sqrt(np.square(wanted.astype(np.float64)).mean()))
    return float(np.sqrt(np.square(values.astype(np.float64) - wanted).mean())) / max(size, 1e-30)
