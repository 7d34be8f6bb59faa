"""Does an implementation agree with its operator's reference on this device?

Memory-bound operators come first: on these devices it is moving bytes, not multiplying, that goes wrong and costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from trivet.base.dtypes import Array, DType, cast, steps
from trivet.operators.contract import OPERATORS, Operator, Sample, TensorSpec, resolve


@dataclass(frozen=True)
class Verdict:
    """What the samples of one operator said. `worst` is the largest error as a share of what is tolerated."""

    operator: str
    num_samples: int  # that were run
    num_refused: int  # that the device's implementations do not take
    worst: float
    failure: str | None  # the first sample that failed, and how; or why none was taken

    @property
    def passed(self) -> bool:
        return self.failure is None


def memory_bound_first(operators: Iterable[str]) -> list[str]:
    """By arithmetic intensity (FLOPs per byte) of the contract's own samples, least first; views left out."""

    def intensity(name: str) -> float:
        operator = OPERATORS[name]
        samples = list(operator.samples(np.random.default_rng(0)))
        num_bytes = sum(operator.bytes(sample.call, sample.sizes) for sample in samples)
        return sum(operator.flops(sample.call, sample.sizes) for sample in samples) / max(1, num_bytes)

    return sorted((name for name in operators if not OPERATORS[name].is_view), key=intensity)


class Refused(Exception):
    """A sample that no implementation of the device takes; the message says why."""


# A sample run on a device: outputs in logical shape and storage format. Raises Refused, or AssertionError with what
# went wrong.
Run = Callable[[Operator, Sample], list[Array]]


def verify(operator: Operator, run: Run, activations: DType = "float32", seed: int = 0) -> Verdict:
    """Run every sample of the contract and compare with the reference.

    With `activations` in bfloat16, weights and caches are bfloat16 too, as a device keeps them; what is int8 stays so.
    """
    worst, num_samples, refusals = 0.0, 0, list[str]()
    for sample in (in_format(operator, each, activations) for each in operator.samples(np.random.default_rng(seed))):
        try:
            error, failure = _check(operator, sample, run, activations)
        except Refused as refused:
            refusals.append(str(refused))
            continue
        num_samples += 1
        worst = max(worst, error)
        if failure is not None:
            described = f"{_describe(operator, sample)}: {failure}"
            return Verdict(operator.name, num_samples, len(refusals), worst, described)
    failure = f"every sample is refused: {refusals[0]}" if num_samples == 0 else None
    return Verdict(operator.name, num_samples, len(refusals), worst, failure)


def in_format(operator: Operator, sample: Sample, activations: DType) -> Sample:
    """The sample with everything in bfloat16 that the contract allows to be, if `activations` are; else as it is."""
    if activations == "float32" or operator.name == "cast":
        return sample
    specs: list[TensorSpec | None] = []
    arrays: list[Array | None] = []
    for argument, spec, array in zip(operator.inputs, sample.call.inputs, sample.inputs, strict=True):
        is_free = spec is not None and spec.dtype != "int8" and activations in argument.dtypes
        if is_free and spec is not None and spec.dtype is not None and array is not None:
            array = cast(array, spec.dtype, activations)
            spec = replace(spec, dtype=activations)
        specs.append(spec)
        arrays.append(array)
    outputs = tuple(
        replace(spec, dtype=activations) if spec.dtype != "int8" and activations in argument.dtypes else spec
        for argument, spec in zip(operator.outputs, sample.call.outputs, strict=False)
    )
    call = replace(sample.call, inputs=tuple(specs), outputs=outputs)
    return replace(sample, call=call, inputs=tuple(arrays))


def _check(operator: Operator, sample: Sample, run: Run, activations: DType) -> tuple[float, str | None]:
    wanted = reference_outputs(operator, sample)
    try:
        made = run(operator, sample)
    except AssertionError as broken:
        return float("inf"), str(broken)
    worst = 0.0
    for argument, spec, want, got in zip(operator.outputs, sample.call.outputs, wanted, made, strict=False):
        assert spec.dtype is not None
        values = cast(got, spec.dtype, "float32").astype(np.float64)
        stored = cast(want.astype(np.float32), "float32", spec.dtype)
        rounded = cast(stored, spec.dtype, "float32").astype(np.float64)
        error = _error(values, rounded)
        # Indices are right or wrong: none is nearly right.
        allows = operator.tolerance.allows
        allowed = np.zeros(()) if spec.dtype == "int32" else allows(rounded, activations, sample.call)
        if spec.dtype == "int8":
            allowed = allowed + operator.tolerance.steps * np.nan_to_num(steps(stored))
        if not (error <= allowed).all():
            worst_at = int(np.argmax(np.where(np.isnan(error), np.inf, error - allowed)))
            return float("inf"), (
                f"{argument.name}[{worst_at}] is {values.reshape(-1)[worst_at]:.9g}, "
                f"the reference {rounded.reshape(-1)[worst_at]:.9g}"
            )
        worst = max(worst, float((error / np.maximum(allowed, 1e-300)).max(initial=0.0)))
    return worst, None


def _error(values: Array, wanted: Array) -> Array:
    """Distances; none between equal infinities, nor between a NaN and the NaN that was wanted."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(values - wanted)
    same = (values == wanted) | (np.isnan(values) & np.isnan(wanted))
    return np.where(same, 0.0, distance)


def reference_outputs(operator: Operator, sample: Sample) -> list[Array]:
    """The reference's outputs in float64, from the sample's stored inputs."""
    inputs: list[Array | None] = []
    for spec, array in zip(sample.call.inputs, sample.inputs, strict=True):
        if spec is None or array is None or spec.dtype == "int32":
            inputs.append(array)
            continue
        assert spec.dtype is not None
        inputs.append(cast(array, spec.dtype, "float32").astype(np.float64))
    return operator.reference(sample.call, inputs)


def _describe(operator: Operator, sample: Sample) -> str:
    parts = [
        f"{argument.name} {spec.dtype}{[resolve(axis, sample.sizes) for axis in spec.axes]}"
        for argument, spec in zip(operator.inputs, sample.call.inputs, strict=True)
        if spec is not None
    ]
    return ", ".join(parts)
