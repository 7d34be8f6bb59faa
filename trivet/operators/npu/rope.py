"""Rotary position embedding: one tensor by npu_rotary_mul, queries and keys together by npu_mrope.

npu_mrope takes cosines and sines as the contract's angles lie (a row per token, cosines before sines) and rotates
both in one call. npu_rotary_mul wants each of them doubled, which costs two copies a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch_npu

from trivet.operators.contract import Call
from trivet.operators.npu.call import implement_on_npu
from trivet.operators.npu.ragged import row_numbers
from trivet.operators.npu.refuse import formats, refuse_formats, refuse_heads, width_of
from trivet.operators.torch.call import Run, given
from trivet.operators.torch.lengths import StepLengths

_MAX_HEAD_DIM = 896  # npu_rotary_mul: D < 896 and even
_MAX_HEADS = 1000  # npu_rotary_mul: N < 1000


def rotate_one(x: torch.Tensor, angles: torch.Tensor, head_dim: int) -> torch.Tensor:
    """x: [tokens, heads · head_dim], rotated over the whole of head_dim by angles: [tokens, head_dim]."""
    cos, sin = angles.to(x.dtype).view(1, len(x), 1, head_dim).chunk(2, dim=-1)
    y: torch.Tensor = torch_npu.npu_rotary_mul(
        input=x.reshape(1, len(x), -1, head_dim),
        r1=torch.cat((cos, cos), dim=-1),
        r2=torch.cat((sin, sin), dim=-1),
        rotary_mode="half",
        rotate=None,
    )
    return y.reshape(x.shape)


def rotate_pair(
    q: torch.Tensor, k: torch.Tensor, angles: torch.Tensor, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k rotated in the first `rotary` dims of each head by angles: [tokens, rotary], rounded to their format."""
    rotated: tuple[torch.Tensor, torch.Tensor] = torch_npu.npu_mrope(
        positions=row_numbers(len(q)),  # of the angles: token i turns by row i
        query=q,
        key=k,
        cos_sin_cache=angles.to(q.dtype),
        head_size=head_dim,
        mrope_section=[0, 0, 0],  # one position per token: plain rotation
        rotary_mode="half",
        cache_mode="default",
    )
    return rotated


def refuse_one(call: Call, x: int, angles: int) -> str | None:
    """Why npu_rotary_mul does not take inputs number `x` and `angles`."""
    head_dim, rotary, heads = call.integer("head_dim"), width_of(call, angles), width_of(call, x)
    if head_dim % 2 or head_dim >= _MAX_HEAD_DIM:
        return f"head_dim {head_dim}, npu_rotary_mul takes even sizes below {_MAX_HEAD_DIM}"
    if rotary != head_dim:
        return f"{rotary} of {head_dim} dims turn, npu_rotary_mul turns whole heads"
    if heads >= _MAX_HEADS * head_dim:
        return f"{heads // head_dim} heads, npu_rotary_mul takes fewer than {_MAX_HEADS}"
    return refuse_heads(call, x, head_dim)


def refuse_pair(call: Call, angles: int) -> str | None:
    """Why npu_mrope does not take a call whose first two inputs are q and k."""
    head_dim, rotary, dtype = call.integer("head_dim"), width_of(call, angles), formats(call)["q"]
    multiple = 16 if dtype == "float32" else 32
    if rotary > head_dim:
        return f"{rotary} angles exceed head_dim {head_dim}"
    if rotary % multiple:
        return f"{rotary} angles, npu_mrope takes multiples of {multiple} in {dtype}"
    return refuse_heads(call, 0, head_dim) or refuse_heads(call, 1, head_dim)


def _refuse_rope(call: Call) -> str | None:
    return refuse_one(call, x=0, angles=1) or refuse_formats(call, ("x", "y"))


def _rope(call: Call, sizes: Mapping[str, int]) -> Run:
    head_dim = call.integer("head_dim")

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        x, angles = given(inputs, 0, 1)
        return [rotate_one(x, angles, head_dim)]

    return run


implement_on_npu("rope", "npu_rotary_mul", _rope, _refuse_rope)
