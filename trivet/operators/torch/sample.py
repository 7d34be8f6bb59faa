"""A contract's sample run by a torch implementation: the same numbers, laid out as PyTorch has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from trivet.base.dtypes import Array, DType
from trivet.base.errors import GraphError
from trivet.operators.contract import Call, Implementation, Operator, Sample, TensorSpec, choose
from trivet.operators.lengths import StepLengths
from trivet.operators.torch.call import DTYPES
from trivet.operators.verify import Refused, Run


def on_torch(device: str = "cpu", registered: str = "torch") -> Run:
    """Runs samples on a torch device with the implementations registered for `registered`."""
    return lambda operator, sample: run_sample(operator, sample, device, registered)


def run_sample(operator: Operator, sample: Sample, device: str, registered: str) -> list[Array]:
    """Outputs in logical shape and storage format. Raises Refused when no implementation takes the sample."""
    call = sample.call
    laid_out = Call(call.operator, tuple(map(_spec, call.inputs)), tuple(map(_laid_out, call.outputs)), call.attributes)
    implementation = choose(laid_out, registered)
    if not isinstance(implementation, Implementation):
        raise Refused("; ".join(f"{variant}: {reason}" for variant, reason in implementation) or "none is registered")
    try:
        run = implementation.lower(laid_out, sample.sizes)
    except GraphError as error:
        raise Refused(error.message) from None
    inputs = [
        None if spec is None or array is None else to_torch(_in_blocks(spec, array), spec.dtype).to(device)
        for spec, array in zip(call.inputs, sample.inputs, strict=True)
    ]
    outputs = run(inputs, _lengths(operator, sample))
    return [
        _logical(spec, to_numpy(tensor.cpu(), spec.dtype)) for spec, tensor in zip(call.outputs, outputs, strict=True)
    ]


def to_torch(stored: Array, dtype: DType | None) -> torch.Tensor:
    """A copy of an array in the storage of `dtype`."""
    tensor = torch.from_numpy(np.array(stored))
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def to_numpy(tensor: torch.Tensor, dtype: DType | None) -> Array:
    """The inverse of `to_torch`. The tensor must be in `dtype`."""
    assert dtype is not None
    assert tensor.dtype == DTYPES[dtype], f"an output is {tensor.dtype}, wanted {dtype}"
    plain = tensor.contiguous()
    array: Array = plain.view(torch.uint16).numpy() if dtype == "bfloat16" else plain.numpy()
    return array


def _spec(spec: TensorSpec | None) -> TensorSpec | None:
    return None if spec is None else _laid_out(spec)


def _laid_out(spec: TensorSpec) -> TensorSpec:
    return replace(spec, layout="blocks" if spec.layout == "kv" else "rows")


def _in_blocks(spec: TensorSpec, array: Array) -> Array:
    """A logical cache [slots, slot_tokens, 2, …] with keys before values; anything else as it is."""
    return np.ascontiguousarray(np.moveaxis(array, 2, 0)) if spec.layout == "kv" else array


def _logical(spec: TensorSpec, array: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, 0, 2)) if spec.layout == "kv" else array


def _lengths(operator: Operator, sample: Sample) -> StepLengths:
    given = dict(zip((argument.name for argument in operator.inputs), sample.inputs, strict=True))
    starts, positions = given.get("starts"), given.get("positions")
    if starts is None or positions is None:
        return StepLengths((), ())
    return step_lengths(starts, positions)


def step_lengths(starts: Array, positions: Array) -> StepLengths:
    """Lengths of a batch's sequences from its own integers, on the host."""
    ends = starts[1:]
    return StepLengths(tuple(ends.tolist()), tuple((positions[ends - 1] + 1).tolist()))
