"""Tile sizes and core counts, as data: one row per kernel and dtype, each with its reason; one row per SoC.

All chips here have the same local memories, so a tile holds for each of them and only the number of programs differs.
`ascend/lower` compiles every row for each generation and fails where one does not fit; nothing is tuned at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trivet.base.dtypes import DType
from trivet.base.errors import ConfigError

Kind = Literal["vector", "mixed"]  # runs on vector cores alone, or on AI cores (one cube core with its vector cores)

UB_BYTES = 192 * 1024
L1_BYTES = 512 * 1024
L0C_BYTES = 128 * 1024


@dataclass(frozen=True)
class Soc:
    """A chip as the kernels see it. Core counts and memories: the platform files of hicann/runtime, `<soc>.ini`
    (cube_core_cnt, vector_core_cnt, ub_size, l1_size, l0_c_size)."""

    name: str
    generation: str
    cube_cores: int
    vector_cores: int

    def programs(self, kind: Kind) -> int:
        """As many as there are cores: a program keeps its core and takes its share of the work, row by row."""
        return self.vector_cores if kind == "vector" else self.cube_cores


SOCS: dict[str, Soc] = {
    soc.name: soc
    for soc in (
        Soc("Ascend910B1", "A2", 24, 48),
        Soc("Ascend910B2", "A2", 24, 48),
        Soc("Ascend910B2C", "A2", 24, 48),
        Soc("Ascend910B3", "A2", 20, 40),
        Soc("Ascend910B4", "A2", 20, 40),
        Soc("Ascend910B4-1", "A2", 20, 40),
        Soc("Ascend910_9362", "A3", 20, 40),
        Soc("Ascend910_9372", "A3", 20, 40),
        Soc("Ascend910_9381", "A3", 24, 48),
        Soc("Ascend910_9382", "A3", 24, 48),
        Soc("Ascend910_9391", "A3", 24, 48),
        Soc("Ascend910_9392", "A3", 24, 48),
    )
}


@dataclass(frozen=True)
class Tile:
    """How much of its operands one kernel holds at once. The names in `sizes` are the kernel's own words."""

    kernel: str
    kind: Kind
    dtypes: tuple[DType, ...]
    sizes: Mapping[str, int]
    reason: str


_HALF: tuple[DType, ...] = ("float16", "bfloat16")
_SINGLE: tuple[DType, ...] = ("float32",)
_EVERY: tuple[DType, ...] = (*_HALF, *_SINGLE)

TILES: tuple[Tile, ...] = (
    Tile("rms_norm", "vector", _EVERY, {"elements": 8192}, "x, its square and y in float32, loads doubled"),
    Tile("add_rms_norm", "vector", _EVERY, {"elements": 8192}, "two inputs, two outputs and the weight at once"),
    Tile("silu_mul", "vector", _EVERY, {"elements": 4096}, "the sigmoid's temporaries in float32, loads doubled"),
    Tile("add", "vector", _EVERY, {"elements": 4096}, "two loads doubled; longer bursts than 8 KiB gain nothing"),
    Tile("take_rows", "vector", _EVERY, {"elements": 8192}, "a copy: one buffer, doubled"),
    Tile("embed", "vector", _EVERY, {"elements": 8192}, "a copy and a cast: two buffers, doubled"),
    Tile("rope", "vector", _EVERY, {"elements": 4096}, "heads · half a head: two halves in and out, in float32"),
    Tile(
        "rope_kv_store",
        "vector",
        _EVERY,
        {"elements": 4096, "sequences": 64},
        "heads · half a head: two halves in, two out, in float32; 64 starts are one vector instruction",
    ),
    Tile(
        "attention",
        "mixed",
        _EVERY,
        {"queries": 32, "positions": 128, "head_dim": 256, "sequences": 64},
        "at head_dim 256 this fills 178 KiB of UB and 480 of L1; 64 queries by 128 positions overflow UB from 128 on",
    ),
    Tile("router_topk", "vector", _SINGLE, {"elements": 2048}, "logits, keys and masks of 8 rows of 256 experts"),
    Tile(
        "order",
        "vector",
        ("int32",),
        {"elements": 4096, "pairs": 64, "row": 16},
        "pairs · experts and pairs · pairs compared at once, 16 KiB each in int32; sums of 256 experts in rows of 16",
    ),
    Tile("permute", "vector", _EVERY, {"elements": 8192}, "a copy: one buffer, doubled"),
    Tile("unpermute", "vector", _EVERY, {"elements": 4096}, "a row and the running sum in float32, loads doubled"),
    Tile("top", "vector", _EVERY, {"elements": 4096, "count": 64}, "scores, keys, tokens and two masks of a block"),
)


def soc_named(name: str) -> Soc:
    """The chip of that name. Raises ConfigError for one whose local memories the tiles were not made for."""
    if name not in SOCS:
        raise ConfigError(f"soc {name} has no tiles", f"known: {', '.join(SOCS)}")
    return SOCS[name]


def tile(kernel: str, dtype: DType) -> Tile:
    """The tile of a kernel for operands of `dtype`."""
    for row in TILES:
        if row.kernel == kernel and dtype in row.dtypes:
            return row
    raise AssertionError(f"{kernel} has no tile for {dtype}")
