"""Reads what installed packages say they consist of and ask for: `RECORD` and `METADATA` in their `dist-info` folders.

Only of packages of the stack, and of requirements only those that hold everywhere: one with a condition (an extra, a
platform) is left to pip.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from trivet.driver.readers.files import exists, read_text
from trivet.driver.stack_facts import Package
from trivet.driver.versions import version_key

_REQUIREMENT = re.compile(
    r"^Requires-Dist: ([A-Za-z0-9][\w.-]*) *\(?((?:[<>=!~]=?=? *[\w.*+!]+ *,? *)+)\)? *$", re.M | re.A
)
_BOUND = re.compile(r"(===?|~=|!=|<=?|>=?) *([\w.*+!]+)", re.ASCII)
_MAX_METADATA = 1 << 17
_MAX_MISSING = 20


def dist_info(package: Package) -> str:
    return f"{package.location}/{package.name.replace('-', '_')}-{package.version}.dist-info"


def read_missing_files(root: Path, package: Package) -> tuple[str, ...] | None:
    """The first of those that RECORD lists and that are not there; None without a RECORD."""
    text = read_text(root, f"{dist_info(package)}/RECORD")
    if text is None:
        return None
    try:
        paths = [row[0] for row in csv.reader(text.splitlines()) if row and not row[0].startswith(("/", ".."))]
    except csv.Error:
        return None
    missing = (path for path in paths if not path.endswith(".pyc") and not exists(root, f"{package.location}/{path}"))
    return tuple(path for path, _ in zip(missing, range(_MAX_MISSING), strict=False))


def read_unmet(root: Path, packages: tuple[Package, ...]) -> tuple[str, ...] | None:
    """What one of `packages` asks of another and does not get, one sentence each; None where none says what it asks."""
    first = {package.name: package for package in reversed(packages)}
    texts = {name: read_text(root, f"{dist_info(each)}/METADATA", _MAX_METADATA) for name, each in first.items()}
    if all(text is None for text in texts.values()):
        return None
    return tuple(
        f"{name} {first[name].version} asks for {other}{bounds}, and there is {first[other].version}"
        for name, text in sorted(texts.items())
        for other, bounds in _requirements((text or "").partition("\n\n")[0])
        if other in first and not allows(bounds, first[other].version)
    )


def allows(bounds: str, version: str) -> bool:
    """Is the version within `>=4.55,!=4.57.*,<5`? What cannot be compared is within."""
    key = version_key(version)
    return not key or all(_fits(sign, bound, key, version) for sign, bound in _BOUND.findall(bounds))


def _fits(sign: str, bound: str, key: tuple[tuple[int, int], ...], version: str) -> bool:
    if bound.endswith(".*"):
        begins = f"{version.partition('+')[0]}.".startswith(bound[:-1])
        return begins if sign in ("==", "===") else not begins if sign == "!=" else True
    limit = version_key(bound)
    match sign:
        case "==" | "===":
            return key == limit
        case "!=":
            return key != limit
        case "~=":  # ~=1.4.2 is >=1.4.2 and ==1.4.*
            return key >= limit and f"{version}.".startswith(bound.rpartition(".")[0] + ".")
        case "<":
            return key < limit
        case "<=":
            return key <= limit
        case ">":
            return key > limit
        case _:
            return key >= limit


def _requirements(metadata: str) -> Iterator[tuple[str, str]]:
    for match in _REQUIREMENT.finditer(metadata):
        yield re.sub(r"[-_.]+", "-", match[1]).lower(), re.sub(r"\s", "", match[2])
