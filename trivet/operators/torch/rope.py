"""Rotary embedding in PyTorch, in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from trivet.operators.contract import Call
from trivet.operators.torch.call import Run, given, implement_in_torch
from trivet.operators.torch.lengths import StepLengths


def rotate(x: torch.Tensor, angles: torch.Tensor, head_dim: int) -> torch.Tensor:
    """x [tokens, heads · head_dim] rotated by angles [tokens, cosines | sines]; dimension i pairs with i + half."""
    half = angles.shape[1] // 2
    heads = x.float().unflatten(-1, (-1, head_dim))
    cos, sin = angles[:, None, :half], angles[:, None, half:]
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
    return rotated.flatten(-2).to(x.dtype)


def _rope(call: Call, sizes: Mapping[str, int]) -> Run:
    head_dim = call.integer("head_dim")

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        x, angles = given(inputs, 0, 1)
        return [rotate(x, angles, head_dim)]

    return run


def _rope_angles(call: Call, sizes: Mapping[str, int]) -> Run:
    scale = call.number("scale")

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        positions, frequencies = given(inputs, 0, 1)
        # Float32 on purpose, as the contract says; a device without float64 gets its own cosine's last bit.
        angle = positions[:, None].float() * frequencies[None]
        return [torch.cat([torch.cos(angle), torch.sin(angle)], dim=1) * scale]

    return run


implement_in_torch("rope", _rope)
implement_in_torch("rope_angles", _rope_angles)
