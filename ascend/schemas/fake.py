"""Accepted calls run on tensors without values: the shapes and formats that come out are those of the contract.

What torch_npu says about shapes is its Meta kernels. They know nothing of the device's limits, so a call that passes
here may still be one that the device refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import ascend.schemas.importable  # noqa: F401  before the implementations, which import torch_npu
from trivet.base.errors import GraphError
from trivet.operators.blocks import in_blocks
from trivet.operators.contract import OPERATORS, Call, Implementation, TensorSpec, resolve
from trivet.operators.npu.attention import causal_mask
from trivet.operators.npu.ragged import kept_numbers
from trivet.operators.torch.call import DTYPES
from trivet.operators.torch.lengths import StepLengths
from trivet.operators.torch.sample import lengths_of
from trivet.operators.verify import in_format

Outcome = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class Case:
    """A call, with the sizes of its named axes and the lengths of its step."""

    call: Call
    sizes: Mapping[str, int]
    lengths: StepLengths


def sample_cases() -> Iterator[Case]:
    """Every sample of every contract as a device keeps it: in bfloat16, weights in rows and caches in blocks."""
    for operator in OPERATORS.values():
        for sample in operator.samples(np.random.default_rng(0)):
            call = in_format(operator, sample, "bfloat16").call
            inputs = tuple(None if spec is None else in_blocks(spec) for spec in call.inputs)
            call = replace(call, inputs=inputs, outputs=tuple(map(in_blocks, call.outputs)))
            yield Case(call, sample.sizes, lengths_of(operator, sample, "cpu"))


def takes(implementation: Implementation, case: Case) -> bool:
    """Whether the call is accepted, and the sizes it would be bound with are."""
    if implementation.refuse(case.call) is not None:
        return False
    try:
        made(implementation, case)
    except GraphError:
        return False
    return True


def wanted(case: Case) -> list[Outcome]:
    """Shape and format of every output, as the contract has them."""
    return [_outcome(spec, case.sizes) for spec in case.call.outputs]


def made(implementation: Implementation, case: Case) -> list[Outcome]:
    """Shape and format of every output that the implementation makes of tensors without values."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        _forget()  # what is kept on the device belongs to one mode
        run = implementation.lower(case.call, case.sizes)
        inputs = [None if spec is None else _empty(spec, case.sizes) for spec in case.call.inputs]
        rows = torch.empty(case.sizes.get("tokens", 0), dtype=torch.int32, device="npu")
        outputs = [
            (tuple(tensor.shape), tensor.dtype) for tensor in run(inputs, replace(case.lengths, cache_rows=rows))
        ]
    _forget()
    return outputs


def _forget() -> None:
    causal_mask.cache_clear()
    kept_numbers.cache_clear()


def _outcome(spec: TensorSpec, sizes: Mapping[str, int]) -> Outcome:
    assert spec.dtype is not None
    shape = [resolve(axis, sizes) for axis in spec.axes]
    if spec.layout == "blocks":  # the contract's [slots, slot_tokens, 2, …] with keys before values
        shape = [shape[2], *shape[:2], *shape[3:]]
    return tuple(shape), DTYPES[spec.dtype]


def _empty(spec: TensorSpec, sizes: Mapping[str, int]) -> torch.Tensor:
    shape, dtype = _outcome(spec, sizes)
    return torch.empty(shape, dtype=dtype, device="npu")
