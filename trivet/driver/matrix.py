"""Which versions are released together, as their makers' documents say: `data/versions.csv`, each row with its source.

It knows releases up to August 2026 and is asked second: what the files on a host say of each other comes first.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from trivet.driver.versions import matches, version_key

COMPONENTS = ("vllm-ascend", "torch-npu", "mindspore", "cann")


@dataclass(frozen=True)
class Row:
    """One release and what it goes with; an empty column is one that the source does not speak of."""

    component: str
    version: str  # "0.23.0"; of CANN also "9.1.X"
    date: str  # of the release, where it is known
    relation: str  # "exact": tested together; "compatible-set": any of those listed
    cann: str
    hdk: str  # drivers, "26.0.RC1|25.5.X"
    torch: str
    torch_npu: str
    vllm: str
    python: str  # ">= 3.10, < 3.13" or "3.10 3.11 3.12"
    triton_ascend: str
    source: str


@cache
def rows() -> tuple[Row, ...]:
    text = (files("trivet.driver") / "data" / "versions.csv").read_text(encoding="utf-8")
    return tuple(Row(**row) for row in csv.DictReader(text.splitlines()))


def rows_of(component: str, version: str) -> tuple[Row, ...]:
    """All rows of this release; none where the matrix does not know it."""
    return tuple(row for row in rows() if row.component == component and matches(version, row.version))


def releases_of(component: str) -> tuple[str, ...]:
    """Those that the matrix knows, the newest first."""
    found = {row.version for row in rows() if row.component == component}
    return tuple(sorted(found, key=version_key, reverse=True))


def drivers_of(cann: str) -> tuple[str, ...]:
    """The drivers that any row names for this CANN, as patterns."""
    return tuple(dict.fromkeys(each for row in rows_of("cann", cann) for each in row.hdk.split("|") if each))


def takes(column: str, version: str) -> bool:
    """Is `version` in a column of several, "25.5.X|25.3.X"? MindSpore's ".beta1" names an edition of CANN."""
    return any(matches(version, re.sub(r"\.beta\d$", "", each)) for each in column.split("|"))


def takes_python(column: str, version: str) -> bool:
    """Is the interpreter within ">= 3.10, < 3.13", or one of "3.10 3.11"?"""
    key = version_key(version)
    bounds = re.findall(r"(>=|<)\s*([\d.]+)", column)
    if bounds and "(" not in column:
        return all(key >= version_key(bound) if sign == ">=" else key < version_key(bound) for sign, bound in bounds)
    minor = ".".join(version.split(".")[:2])
    return minor in re.findall(r"\d+\.\d+", column)
