"""The block layout of a cache: one tensor of keys, then values, as every device but the CPU keeps it.

The contracts' logical cache has both side by side in a token; here all keys come first.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trivet.base.dtypes import Array
from trivet.operators.contract import TensorSpec


def in_blocks(spec: TensorSpec) -> TensorSpec:
    """The spec on such a device: a cache in blocks, anything else in rows."""
    return replace(spec, layout="blocks" if spec.layout == "kv" else "rows")


def to_blocks(cache: Array) -> Array:
    """[num_slots, slot_tokens, 2, kv_heads, head_dim] → [2, num_slots, slot_tokens, kv_heads, head_dim]."""
    return np.ascontiguousarray(np.moveaxis(cache, 2, 0))


def from_blocks(cache: Array) -> Array:
    """The inverse of `to_blocks`."""
    return np.ascontiguousarray(np.moveaxis(cache, 0, 2))
