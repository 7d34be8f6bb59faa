"""How far one plan of a model is from another on the same text: in its answers, and layer by layer on the way to them.

The reference is usually float32 on the CPU, or the published implementation. Drift has an address: the first layer
whose input is off says where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from trivet.base.dtypes import Array, DType
from trivet.base.errors import ConfigError
from trivet.base.settings import Settings
from trivet.framework.engine.published import open_published
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
    dtype: DType | None  # None: as the package has it
    model: str | None = None  # None: the model that is asked about

    def __str__(self) -> str:
        where = f"{self.dtype or 'its own format'} on {self.device}"
        return where if self.model is None else f"{self.model} in {where}"


@dataclass(frozen=True)
class Published:
    """The published implementation of the model, in float32, as a reference."""

    def __str__(self) -> str:
        return "transformers in float32"


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
    greedy_tokens: int  # that both continued the text by, each after its own
    greedy_agreed: int  # of them, from the first on, that are the same
    layers: tuple[float, ...]  # error of each layer's input, as a share of its own size (root mean square)


# Tokens → logits [tokens, vocab], and the input of each layer [tokens, hidden].
Compute = Callable[[Sequence[int]], tuple[Array, list[Array]]]


@dataclass(frozen=True)
class Answers:
    """What one side makes of a text, and how it goes on."""

    logits: Array  # [tokens, vocab]
    layers: Sequence[Array]  # the input of each, [tokens, hidden]
    greedy: tuple[int, ...] = ()


def measure(
    model: str,
    tokens: Sequence[int],
    subject: Side,
    reference: Side | Published,
    cpus: tuple[int, ...],
    settings: Settings,
    num_greedy: int = 0,
) -> Agreement:
    """Compare on `tokens`, each side in one step; then both continue by `num_greedy` tokens of their own.

    Raises as `open_model`, `open_published` and the devices' bindings do; ConfigError when the two are of different
    models.
    """
    answers = []
    for side in (subject, reference):
        with _opened(model, side, len(tokens) + num_greedy, cpus, settings) as compute:
            logits, layers = compute(tokens)
            answers.append(Answers(logits, layers, _continue(compute, tokens, logits, num_greedy)))
    return compare(*answers)


def compare(found: Answers, reference: Answers) -> Agreement:
    """How far the answers found are from the reference's. Raises ConfigError when their shapes differ."""
    logits, wanted = found.logits, reference.logits
    if logits.shape != wanted.shape or len(found.layers) != len(reference.layers):
        raise ConfigError(
            f"accuracy: {len(found.layers)} layers and a vocabulary of {logits.shape[1]} against "
            f"{len(reference.layers)} and {wanted.shape[1]}",
            "compare packages of the same model",
        )
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
        greedy_tokens=len(reference.greedy),
        greedy_agreed=_agreed(found.greedy, reference.greedy),
        layers=tuple(_relative_error(a, b) for a, b in zip(found.layers, reference.layers, strict=True)),
    )


@contextmanager
def _opened(
    model: str, side: Side | Published, max_tokens: int, cpus: tuple[int, ...], settings: Settings
) -> Iterator[Compute]:
    """A side while it is asked; the next one is opened when its memory is free again."""
    if isinstance(side, Published):
        yield open_published(model)
        return
    package = open_model(side.model or model, device=side.device, dtype=side.dtype, settings=settings)
    inputs = [f"layers.{layer}.input" for layer in range(package.config.num_layers)]
    plan = _bind(package, side, max_tokens, inputs, cpus, settings)
    try:
        yield lambda tokens: _compute(plan, package.graph.outputs[0], inputs, tokens)
    finally:
        plan.close()


def _compute(plan: BoundPlan, output: str, inputs: Sequence[str], tokens: Sequence[int]) -> tuple[Array, list[Array]]:
    num_slots = -(-len(tokens) // plan.slot_tokens)
    everything = np.arange(len(tokens), dtype=np.int32)
    batch = Batch(
        tokens=np.asarray(tokens, np.int32),
        positions=everything,
        starts=np.array([0, len(tokens)], np.int32),
        slots=np.arange(num_slots, dtype=np.int32)[None],
        rows=everything,
    )
    values = plan.values(batch, [output, *inputs])
    return values[output], [values[name] for name in inputs]


def _continue(compute: Compute, tokens: Sequence[int], logits: Array, count: int) -> tuple[int, ...]:
    """The likeliest tokens after the text, one by one; each from the whole text again, which needs no cache."""
    text = list(tokens)
    while len(text) < len(tokens) + count:
        text.append(int(logits[-1].argmax()))
        if len(text) < len(tokens) + count:
            logits, _ = compute(text)
    return tuple(text[len(tokens) :])


def _agreed(found: Sequence[int], wanted: Sequence[int]) -> int:
    """How many are the same from the first on."""
    return next((i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b), len(wanted))


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
