"""A contract's samples as the proofs give them to kernels, and whether what came of one agrees with the reference.

Samples come in any float dtype, KV caches in blocks. The truth is the contract's reference in float64, on the
sample's numbers as float32: beside bfloat16 it rounds on its way what the CPU's kernels round, and others need not. To
the contract's tolerance is added what these kernels round to the dtype: results, and weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from trivet.base.dtypes import Array, DType, cast, storage
from trivet.operators.blocks import from_blocks, in_blocks, to_blocks
from trivet.operators.contract import Call, Operator, Sample, TensorSpec, resolve
from trivet.operators.verify import reference_outputs

POISON = 0xFF  # a NaN in every float format, −1 in the integers: what is not written shows
_ULP: dict[DType, float] = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Agreement:
    """One sample through one kernel. `worst` is the largest error as a share of what is allowed."""

    what: str
    worst: float
    failure: str | None


def samples_in(operator: Operator, dtype: DType, seed: int = 0) -> Iterator[Sample]:
    """The contract's samples with every argument that may be a half in `dtype`, laid out as on a device. Samples that
    are then the same call on the same sizes are given once."""
    seen = set()
    for sample in operator.samples(np.random.default_rng(seed)):
        specs = tuple(_in_dtype(operator, i, spec, dtype) for i, spec in enumerate(sample.call.inputs))
        outputs = tuple(in_blocks(replace(spec, dtype=dtype)) for spec in sample.call.outputs)
        key = (specs, outputs, tuple(sample.sizes.items()), tuple(sample.call.attributes.items()))
        if key in seen:
            continue
        seen.add(key)
        inputs = tuple(map(_cast, sample.inputs, sample.call.inputs, specs))
        yield Sample(Call(sample.call.operator, specs, outputs, sample.call.attributes), inputs, sample.sizes)


def operand_dtypes(operator: Operator, call: Call) -> dict[str, DType]:
    """Argument names of the contract → dtypes of this call."""
    named = (*zip(operator.inputs, call.inputs, strict=True), *zip(operator.outputs, call.outputs, strict=False))
    return {argument.name: spec.dtype for argument, spec in named if spec is not None and spec.dtype is not None}


def operands(operator: Operator, sample: Sample) -> dict[str, Array]:
    """Inputs as copies, outputs poisoned; an output that updates an input has that input's memory."""
    made = {
        argument.name: to_blocks(array) if spec.layout == "blocks" else np.array(array, order="C")
        for argument, spec, array in zip(operator.inputs, sample.call.inputs, sample.inputs, strict=True)
        if spec is not None and array is not None
    }
    for argument, spec in zip(operator.outputs, sample.call.outputs, strict=False):
        if argument.name not in operator.updates:
            assert spec.dtype is not None
            shape, item = tuple(resolve(axis, sample.sizes) for axis in spec.axes), storage(spec.dtype)
            made[argument.name] = np.full((*shape, item.itemsize), POISON, np.uint8).view(item)[..., 0]
    return made


def outputs(operator: Operator, sample: Sample, left: Mapping[str, Array]) -> dict[str, Array]:
    """Every output, in logical shape and storage format, out of the operands as a kernel left them."""
    return {
        argument.name: from_blocks(left[operator.updates[argument.name]])
        if argument.name in operator.updates
        else left[argument.name]
        for argument in operator.outputs[: len(sample.call.outputs)]
    }


def compare(what: str, operator: Operator, sample: Sample, left: Mapping[str, Array]) -> Agreement:
    """The outputs among the operands that a kernel left, with the reference."""
    worst, made, exact = 0.0, outputs(operator, sample, left), widened(sample)
    wanted, rounding = reference_outputs(operator, exact), _weights_rounding(operator, sample, exact)
    for argument, spec, want in zip(operator.outputs, sample.call.outputs, wanted, strict=False):
        assert spec.dtype is not None
        got = cast(made[argument.name], spec.dtype, "float32").astype(np.float64)
        rounded = cast(cast(want.astype(np.float32), "float32", spec.dtype), spec.dtype, "float32").astype(np.float64)
        relative = operator.tolerance.relative + _ULP[spec.dtype]
        allowed = operator.tolerance.absolute + relative * np.abs(rounded) + rounding
        error = np.abs(got - rounded)
        if not (error <= allowed).all():
            at = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error - allowed)), error.shape)
            place = ", ".join(str(i) for i in at)
            failure = f"{argument.name}[{place}] is {got[at]:.9g}, the reference {rounded[at]:.9g}"
            return Agreement(what, float("inf"), failure)
        worst = max(worst, float((error / np.maximum(allowed, 1e-300)).max(initial=0.0)))
    return Agreement(what, worst, None)


def widened(sample: Sample) -> Sample:
    """The same numbers in float32, whatever format they are stored in: beside it a reference rounds nothing."""
    specs = tuple(spec and (spec if spec.dtype == "int32" else replace(spec, dtype="float32"))
                  for spec in sample.call.inputs)  # fmt: skip
    inputs = tuple(map(_cast, sample.inputs, sample.call.inputs, specs))
    return replace(sample, call=replace(sample.call, inputs=specs), inputs=inputs)


def _in_dtype(operator: Operator, index: int, spec: TensorSpec | None, dtype: DType) -> TensorSpec | None:
    if spec is None:
        return None
    return in_blocks(replace(spec, dtype=dtype) if "bfloat16" in operator.inputs[index].dtypes else spec)


def _cast(array: Array | None, old: TensorSpec | None, new: TensorSpec | None) -> Array | None:
    if array is None or old is None or new is None:
        return array
    assert old.dtype is not None and new.dtype is not None
    return cast(array, old.dtype, new.dtype)


def _weights_rounding(operator: Operator, sample: Sample, exact: Sample) -> Array | float:
    """What attention may lose by rounding its weights to the cache's dtype before it multiplies values with them.

    Half an ulp of each weight times its value: that share of the reference's own answer to |values|.
    """
    if operator.name != "attention":
        return 0.0
    spec, cache = sample.call.inputs[1], exact.inputs[1]
    assert spec is not None and spec.dtype is not None and cache is not None
    if spec.dtype == "float32":
        return 0.0
    sizes = cache.copy()
    sizes[:, :, 1] = np.abs(sizes[:, :, 1])
    inputs = (exact.inputs[0], sizes, *exact.inputs[2:])
    return reference_outputs(operator, replace(exact, inputs=inputs))[0] * (_ULP[spec.dtype] / 2)
