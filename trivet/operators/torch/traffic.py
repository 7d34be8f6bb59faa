"""What PyTorch moves beneath an operator: every kernel it dispatches, with the bytes that kernel reads and writes.

Beside the fewest bytes of the contract, an unnecessary copy, cast or temporary shows as a ratio above one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_COPIES = frozenset({"aten::clone", "aten::copy_", "aten::contiguous", "aten::cat"})
_CAST = "aten::_to_copy"
# They touch the rows that their indices name, not all of their first argument.
_GATHERS = frozenset({"aten::index", "aten::index_select", "aten::embedding", "aten::gather"})
_SCATTERS = frozenset({"aten::index_put_", "aten::_index_put_impl_", "aten::index_copy_", "aten::scatter_"})


@dataclass
class Traffic:
    """Bytes that were read and written, and how many kernels did what."""

    num_bytes: int = 0
    kernels: int = 0
    copies: int = 0
    casts: int = 0
    allocated_bytes: int = 0


class TrafficCounter(TorchDispatchMode):
    """`with TrafficCounter() as traffic:` counts what runs inside. A view is no kernel: it moves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic()

    def __enter__(self) -> Traffic:  # type: ignore[override]
        super().__enter__()
        return self.traffic

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        schema = func._schema  # type: ignore[attr-defined]
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if _is_view(schema):
            return result
        known = {tensor.untyped_storage().data_ptr() for tensor in read}
        new_bytes = sum(tensor.nbytes for tensor in made if tensor.untyped_storage().data_ptr() not in known)
        traffic = self.traffic
        traffic.kernels += 1
        traffic.num_bytes += _moved_bytes(schema.name, read, made)
        traffic.allocated_bytes += new_bytes
        traffic.copies += schema.name in _COPIES
        traffic.casts += schema.name == _CAST
        return result


def _moved_bytes(name: str, read: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> int:
    taken, given = [int(tensor.nbytes) for tensor in read], sum(int(tensor.nbytes) for tensor in made)
    if name in _GATHERS:
        return 2 * given + sum(taken[1:])
    if name in _SCATTERS:
        return 2 * taken[-1] + sum(taken[1:-1])
    return sum(taken) + given


def _is_view(schema: Any) -> bool:
    """Whether the result is the argument's own memory, looked at in another way."""
    aliases = [each.alias_info for each in schema.returns if each.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)
