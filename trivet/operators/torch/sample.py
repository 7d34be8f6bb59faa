"""A contract's sample run by a torch implementation: the same numbers, laid out as PyTorch has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from trivet.base.dtypes import Array, DType
from trivet.base.errors import GraphError
from trivet.operators.blocks import from_blocks, in_blocks, to_blocks
from trivet.operators.contract import Implementation, Operator, Sample, choose
from trivet.operators.torch.call import DTYPES
from trivet.operators.torch.lengths import StepLengths, cache_rows, step_lengths
from trivet.operators.verify import Refused, Run


def on_torch(device: str = "cpu", registered: str = "torch") -> Run:
    """Runs samples on a torch device with the implementations registered for `registered`."""
    return lambda operator, sample: run_sample(operator, sample, device, registered)


def run_sample(operator: Operator, sample: Sample, device: str, registered: str) -> list[Array]:
    """Outputs in logical shape and storage format. Raises Refused when no implementation takes the sample."""
    call = sample.call
    inputs_there = tuple(None if spec is None else in_blocks(spec) for spec in call.inputs)
    laid_out = replace(call, inputs=inputs_there, outputs=tuple(map(in_blocks, call.outputs)))
    implementation = choose(laid_out, registered)
    if not isinstance(implementation, Implementation):
        raise Refused("; ".join(f"{variant}: {reason}" for variant, reason in implementation) or "none is registered")
    prepare = implementation.prepare
    try:
        run = implementation.lower(laid_out, sample.sizes)
    except GraphError as error:
        raise Refused(error.message) from None
    inputs: list[torch.Tensor | None] = []
    for argument, spec, array in zip(operator.inputs, call.inputs, sample.inputs, strict=True):
        if spec is None or array is None:
            inputs.append(None)
            continue
        tensor = to_torch(to_blocks(array) if spec.layout == "kv" else array, spec.dtype).to(device)
        # as a plan would have it: what is a weight, the implementation knows
        inputs.append(tensor if prepare is None else prepare(laid_out, argument.name, tensor))
    outputs = run(inputs, lengths_of(operator, sample, device))
    made = [to_numpy(tensor.cpu(), spec.dtype) for spec, tensor in zip(call.outputs, outputs, strict=True)]
    pairs = zip(call.outputs, made, strict=True)
    return [from_blocks(array) if spec.layout == "kv" else array for spec, array in pairs]


def to_torch(stored: Array, dtype: DType | None) -> torch.Tensor:
    """A copy of an array in the storage of `dtype`."""
    return as_torch(np.array(stored), dtype)


def as_torch(stored: Array, dtype: DType | None) -> torch.Tensor:
    """An array in the storage of `dtype` as the tensor that it is, in the same memory."""
    tensor = torch.from_numpy(stored)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def to_numpy(tensor: torch.Tensor, dtype: DType | None) -> Array:
    """The inverse of `to_torch`. The tensor must be in `dtype`."""
    assert dtype is not None
    assert tensor.dtype == DTYPES[dtype], f"an output is {tensor.dtype}, wanted {dtype}"
    plain = tensor.contiguous()
    array: Array = plain.view(torch.uint16).numpy() if dtype == "bfloat16" else plain.numpy()
    return array


def lengths_of(operator: Operator, sample: Sample, device: str) -> StepLengths:
    """What a host would know of the sample's step; nothing where the operator is not told of sequences."""
    given = dict(zip((argument.name for argument in operator.inputs), sample.inputs, strict=True))
    starts, positions, slots = (given.get(name) for name in ("starts", "positions", "slots"))
    if starts is None or positions is None or slots is None:
        return StepLengths((), ())
    rows = cache_rows(starts, positions, slots, sample.sizes["slot_tokens"])
    return step_lengths(starts, positions, torch.from_numpy(rows).to(device))
