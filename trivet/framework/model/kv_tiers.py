"""Where the KV cache of a model goes beyond its pool, and whose blocks those are."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trivet import __version__
from trivet.base.dtypes import GROUP, Array, DType, item_bytes, row_bytes, storage
from trivet.base.errors import ResourceError
from trivet.base.units import GIB, MIB
from trivet.driver.devices.device import DeviceName
from trivet.framework.graph import ir
from trivet.framework.memory.chain import Identity, digest
from trivet.framework.memory.file_tier import FileTier
from trivet.framework.memory.host_tier import HostTier
from trivet.framework.memory.slot_memory import SlotMemory
from trivet.framework.memory.slots import SlotLayout
from trivet.framework.memory.tiers import Tiers
from trivet.framework.model.package import Package
from trivet.operators.kv_layout import BLOCK_TOKENS, pack_kv

DEFAULT_HOST_BYTES = 256 * MIB  # behind a pool, before files: what is on its way between them
DEFAULT_DIR_BYTES = 16 * GIB


@dataclass(frozen=True)
class TierSizes:
    """`host_bytes` of host memory, and `folder_bytes` of files in `folder`; without a folder there are no files."""

    host_bytes: int
    folder: Path | None
    folder_bytes: int


def tier_sizes(host_bytes: int | None, folder: Path | None, folder_bytes: int | None) -> TierSizes | None:
    """What was asked for, and what was not; None when neither a memory nor a folder was.

    Raises ResourceError for the size of a folder that is not named.
    """
    if folder is None and folder_bytes is not None:
        raise ResourceError(
            "--kv-dir-bytes is what the folder of --kv-dir may hold, and no folder is named",
            "name one with --kv-dir, or leave --kv-dir-bytes out",
        )
    if host_bytes is None and folder is None:
        return None
    return TierSizes(
        DEFAULT_HOST_BYTES if host_bytes is None else host_bytes,
        folder,
        DEFAULT_DIR_BYTES if folder_bytes is None else folder_bytes,
    )


def open_tiers(sizes: TierSizes, memory: SlotMemory, package: Package, layout: SlotLayout, device: DeviceName) -> Tiers:
    """The tiers behind the pool of a plan. Raises ResourceError when a size holds no block or the folder is no use."""
    identity = kv_identity(package, layout, device)
    host = HostTier(sizes.host_bytes, memory.slot_bytes)
    if sizes.folder is None:
        return Tiers(identity, memory, host)
    return Tiers(identity, memory, host, FileTier(sizes.folder, sizes.folder_bytes, identity, memory.pieces))


def kv_identity(package: Package, layout: SlotLayout, device: DeviceName) -> Identity:
    """Two processes of one identity write the same bytes for the same tokens: same graph, weights, kernels, layout."""
    graph = json.dumps(ir.to_json(package.graph), sort_keys=True)
    weights = [f"{name} {stored.xxh3}" for name, stored in package.stored.items()]
    # Another version of trivet may sum in another order, another C library round a cosine of the rotary angles
    # differently; instruction sets agree to the bit.
    computed_by = (__version__, device, *platform.libc_ver(), platform.machine())
    model = digest(*(text.encode() for text in (*computed_by, graph, *weights)))
    streams = [[stream.name, stream.kind, stream.num_heads, stream.head_dim, package.graph.values[stream.name].dtype]
               for stream in package.graph.streams]  # fmt: skip
    cut = [layout.slot_tokens, layout.stride_bytes, dict(layout.offsets)]
    formats = dict.fromkeys(package.graph.values[stream.name].dtype for stream in package.graph.streams)
    samples = [pack_kv(_sample(dtype)).tobytes() for dtype in formats if dtype is not None]
    return Identity(model, digest(json.dumps([streams, cut, device]).encode(), *samples))


def _sample(dtype: DType) -> Array:
    """A logical cache in that format: two blocks of two heads, which in int8 have two scales each."""
    row = row_bytes(GROUP + 2, dtype) // item_bytes(dtype)
    numbers = np.arange(4 * 2 * BLOCK_TOKENS * row, dtype=np.uint64) * 2654435761 >> 8  # neighbours differ in each byte
    return numbers.astype(storage(dtype)).reshape(1, 2 * BLOCK_TOKENS, 2, 2, row)
