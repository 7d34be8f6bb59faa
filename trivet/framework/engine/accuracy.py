"""How far one plan of a model is from another on the same text: in its answers, and layer by layer on the way to them.

The reference is usually float32 on the CPU, or the published implementation. Drift has an address: the first layer
whose input is off says where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from trivet.base.dtypes import Array, DType
from trivet.base.errors import ConfigError
from trivet.base.formats import KvFormat, MatrixFormat
from trivet.base.settings import Settings
from trivet.driver.devices.device import DeviceName
from trivet.framework.engine.published import open_published
from trivet.framework.graph.binding import BINDINGS, Request
from trivet.framework.graph.cost import stream_bytes
from trivet.framework.graph.plan import Batch, BoundPlan, Limits
from trivet.framework.memory.slots import lay_out
from trivet.framework.model.json_file import write_json
from trivet.framework.model.loader import open_model
from trivet.framework.model.package import Package
from trivet.framework.model.tokenizer import Tokenizer

_TOP = 5
_CONTINUED = 64  # tokens of the text that a continuation sees
_BLOCK = 64  # positions whose distributions are in memory at once, in float64
_SAMPLE = Path(__file__).with_name("sample_text.txt")


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    device: DeviceName
    dtype: DType | None  # None: as the package has it
    weights: MatrixFormat | None = None
    model: str | None = None  # None: the model that is asked about
    kv_dtype: KvFormat | None = None

    def __str__(self) -> str:
        kept = [f"{self.weights} weights"] if self.weights else []
        kept += [f"a KV cache in {self.kv_dtype}"] if self.kv_dtype else []
        where = f"{self.dtype or 'its own format'}{' with ' if kept else ''}{' and '.join(kept)} on {self.device}"
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
    perplexity: float  # of the text, for the subject
    reference_perplexity: float
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
    """Compare on `tokens`, each side in one step; then both continue their last few by `num_greedy` of their own.

    Raises as `open_model`, `open_published` and the devices' bindings do; ConfigError when the two are of different
    models, or no token follows another.
    """
    if len(tokens) < 2:
        raise ConfigError(
            f"accuracy: {len(tokens)} tokens to compare on, wanted at least 2: it is of those that follow others",
            "give a longer text, or continue by less than the model's context",
        )
    answers = []
    for side in (subject, reference):
        with _opened(model, side, len(tokens) + num_greedy, cpus, settings) as compute:
            answers.append(Answers(*compute(tokens), _continue(compute, tokens, num_greedy)))
    return compare(tokens, *answers)


def between(
    tokens: Sequence[int], package: Package, reference: Package, cpus: tuple[int, ...], settings: Settings
) -> Agreement:
    """Two packages of one model on the CPU, compared on `tokens` in one step."""
    answers = []
    for each in (package, reference):
        with _bound(each, "cpu", len(tokens), cpus, settings) as compute:
            answers.append(Answers(*compute(tokens)))
    return compare(tokens, *answers)


def sample_tokens(package: Package) -> list[int]:
    """A page of English prose of the nineteenth century, free of rights, as the model reads it."""
    text = _SAMPLE.read_text(encoding="utf-8")
    return Tokenizer(package.tokenizer).encode(text, add_special=True)[: package.config.max_context]


def write_accuracy(folder: Path, reference: str, found: Agreement) -> None:
    """Keep in a package what was found of it: accuracy.json, for whoever decides whether to serve it."""
    write_json(folder / "accuracy.json", {"reference": reference, **asdict(found)})


def compare(tokens: Sequence[int], found: Answers, reference: Answers) -> Agreement:
    """How far the answers found to `tokens` are from the reference's. Raises ConfigError when their shapes differ."""
    logits, wanted = found.logits, reference.logits
    if logits.shape != wanted.shape or len(found.layers) != len(reference.layers):
        raise ConfigError(
            f"accuracy: {len(found.layers)} layers and a vocabulary of {logits.shape[1]} against "
            f"{len(reference.layers)} and {wanted.shape[1]}",
            "compare packages of the same model",
        )
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(logits), _BLOCK)]
    errors, divergences, losses, shared = [], [], [], []
    for block in blocks:
        error = np.abs(logits[block].astype(np.float64) - wanted[block])
        errors.append((error.sum(), error.max()))
        log_p, log_q = _log_softmax(wanted[block]), _log_softmax(logits[block])
        divergences.append((np.exp(log_p) * (log_p - log_q)).sum(axis=1))
        following = np.asarray(tokens[block.start + 1 : block.stop + 1])
        rows = np.arange(len(following))
        losses.append(-np.stack([log_q[rows, following], log_p[rows, following]]))
        top, wanted_top = (
            np.argpartition(each[block], -_TOP, axis=1)[:, -_TOP:] for each in (logits, wanted)
        )  # fmt: skip
        shared += [len(np.intersect1d(a, b)) / _TOP for a, b in zip(top, wanted_top, strict=True)]
    kl = np.concatenate(divergences)
    perplexity, reference_perplexity = np.exp(np.concatenate(losses, axis=1).mean(axis=1)).tolist()
    best, wanted_best = logits.argmax(axis=1), wanted.argmax(axis=1)
    differs = np.flatnonzero(best != wanted_best)
    first = int(differs[0]) if len(differs) else None
    return Agreement(
        num_tokens=len(logits),
        perplexity=perplexity,
        reference_perplexity=reference_perplexity,
        mean_error=float(sum(total for total, _ in errors) / logits.size),
        max_error=float(max(greatest for _, greatest in errors)),
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
    model: str, side: Side | Published, num_tokens: int, cpus: tuple[int, ...], settings: Settings
) -> Iterator[Compute]:
    """A side while it is asked; the next one is opened when its memory is free again."""
    if isinstance(side, Published):
        yield open_published(model)
        return
    package = open_model(
        side.model or model,
        device=side.device,
        dtype=side.dtype,
        weights=side.weights,
        kv_dtype=side.kv_dtype,
        settings=settings,
    )
    with _bound(package, side.device, num_tokens, cpus, settings) as compute:
        yield compute


@contextmanager
def _bound(
    package: Package, device: DeviceName, num_tokens: int, cpus: tuple[int, ...], settings: Settings
) -> Iterator[Compute]:
    inputs = [f"layers.{layer}.input" for layer in range(package.config.num_layers)]
    plan = _bind(package, device, num_tokens, inputs, cpus, settings)
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


def _continue(compute: Compute, tokens: Sequence[int], count: int) -> tuple[int, ...]:
    """The likeliest tokens after the last of the text, one by one, each from all before it: it needs no cache."""
    text = list(tokens[-_CONTINUED:])
    start = len(text)
    while len(text) < start + count:
        logits, _ = compute(text)
        text.append(int(logits[-1].argmax()))
    return tuple(text[start:])


def _agreed(found: Sequence[int], wanted: Sequence[int]) -> int:
    """How many are the same from the first on."""
    return next((i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b), len(wanted))


def _bind(
    package: Package,
    device: DeviceName,
    num_tokens: int,
    kept: Sequence[str],
    cpus: tuple[int, ...],
    settings: Settings,
) -> BoundPlan:
    binding = BINDINGS[device]
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
