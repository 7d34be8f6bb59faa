"""How an operator is called in PyTorch, and how an implementation joins the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from trivet.base.dtypes import GROUP, DType
from trivet.operators.contract import Call, Implementation, Layout, implement
from trivet.operators.torch.lengths import StepLengths

# Inputs and outputs in the order of the contract. A cache is updated in place and given back as the output.
Run = Callable[[Sequence[torch.Tensor | None], StepLengths], list[torch.Tensor]]
Lower = Callable[[Call, Mapping[str, int]], Run]

DTYPES: dict[DType, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int8": torch.uint8,  # integers and scales, as `trivet.base.dtypes` has them
}

_LAYOUTS: tuple[Layout, ...] = ("rows", "blocks")


def refuse_layouts(call: Call) -> str | None:
    """Why tensors of this call cannot be PyTorch's: they lie as the CPU's kernels want them."""
    for spec in (*call.inputs, *call.outputs):
        if spec is not None and spec.layout not in _LAYOUTS:
            return f"a tensor lies in {spec.layout}, wanted rows or blocks (pass lay_out for this device)"
    return None


def widened(rows: torch.Tensor, dtype: DType | None) -> torch.Tensor:
    """Rows of a weight or a cache as numbers: those of int8 in float32, which they are exactly; others as they are."""
    if dtype != "int8":
        return rows
    num_groups = -(-rows.shape[-1] // (GROUP + 2))
    width = rows.shape[-1] - 2 * num_groups
    # Cloned: scales after an odd number of integers lie where no bfloat16 may.
    scales = rows[..., width:].clone(memory_format=torch.contiguous_format).view(torch.bfloat16)
    integers = rows[..., :width].view(torch.int8)
    return integers.float() * scales.float()[..., None].expand(*scales.shape, GROUP).flatten(-2)[..., :width]


def narrowed(values: torch.Tensor) -> torch.Tensor:
    """Numbers as rows of int8, as `trivet.base.dtypes.cast` makes them: integers, then the scales of their groups."""
    width = values.shape[-1]
    groups = torch.nn.functional.pad(values.float(), (0, -width % GROUP)).unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(dim=-1)
    stored = torch.where(largest.isfinite(), largest / 127, torch.nan).to(torch.bfloat16)
    scales = stored.float()[..., None]
    quotients = torch.where(scales > 0, groups / scales, 0.0)
    integers = quotients.round().clamp(-127, 127).to(torch.int8).flatten(-2)[..., :width]
    return torch.cat([integers.view(torch.uint8), stored.view(torch.uint8)], dim=-1)


def as_multiplied(x: torch.Tensor, weight: DType | None) -> torch.Tensor:
    """x rounded to bfloat16 where it meets a weight in bfloat16 or int8, as the contract has it; in its own format."""
    return x.bfloat16().to(x.dtype) if weight in ("bfloat16", "int8") else x


def implement_in_torch(operator: str, lower: Lower) -> Implementation:
    """Register `lower` as the operator's implementation on the device `torch`."""
    return implement(Implementation(operator, "torch", "torch", refuse_layouts, lower))


def given(inputs: Sequence[torch.Tensor | None], *indices: int) -> tuple[torch.Tensor, ...]:
    """Inputs that the contract requires."""
    chosen = []
    for index in indices:
        tensor = inputs[index]
        assert tensor is not None, f"input {index} is missing"
        chosen.append(tensor)
    return tuple(chosen)
