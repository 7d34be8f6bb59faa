"""What is published of each Ascend chip, by CANN's name of it: data, with its sources. It knows no chip at hand.

The operations a second are cube cores x 8192 x clock of CANN's platform files, which is what Huawei's own model of
performance has for bfloat16. Bandwidths are nowhere in CANN: where no source gives one it is unknown.
"""

from __future__ import annotations

import csv
import difflib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from trivet.base.errors import ResourceError
from trivet.base.units import GIB

PREFIX = "Ascend"


@dataclass(frozen=True)
class Soc:
    """One row of `data/soc.csv`."""

    name: str  # CANN's: Ascend910B3. Ascend910B without a digit is a chip of the first generation
    family: str  # for people
    memory_bytes: int
    bytes_per_s: float | None  # of its memory, by the data sheet; None if unknown
    flops_per_s: float  # of the cube cores, float16 or bfloat16, dense
    has_bfloat16: bool
    sources: tuple[str, ...]


@cache
def socs() -> dict[str, Soc]:
    """Every chip by its name."""
    text = files("trivet.driver.devices").joinpath("data/soc.csv").read_text(encoding="utf-8")
    return {row["soc"]: _soc(row) for row in csv.DictReader(text.splitlines())}


def soc_named(name: str) -> Soc:
    """The chip of this name, with or without "Ascend", in any case.

    Raises ResourceError with the nearest names when there is none.
    """
    known = {soc.removeprefix(PREFIX).lower(): soc for soc in socs()}
    asked = name.lower().removeprefix(PREFIX.lower())
    if asked in known:
        return socs()[known[asked]]
    near = [known[key] for key in difflib.get_close_matches(asked, known, n=3, cutoff=0.5)]
    raise ResourceError(
        f"--device {name} is no Ascend chip that CANN names",
        f"one of {', '.join(near or ['Ascend910B3', 'Ascend910_9391', 'Ascend310P3'])}; npu-smi info shows the name",
    )


def _soc(row: dict[str, str]) -> Soc:
    bandwidth = row["memory_gb_per_s"]
    return Soc(
        name=row["soc"],
        family=row["family"],
        memory_bytes=int(float(row["memory_gib"]) * GIB),
        bytes_per_s=float(bandwidth) * 1e9 if bandwidth else None,
        flops_per_s=float(row["tflops"]) * 1e12,
        has_bfloat16=row["has_bfloat16"] == "1",
        sources=tuple(dict.fromkeys(filter(None, (row["source"], row["memory_source"], row["bandwidth_source"])))),
    )
