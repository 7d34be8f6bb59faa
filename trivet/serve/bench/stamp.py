"""Under which circumstances a figure was taken: the model, the host, the version and commit of Trivet, the date."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import trivet
from trivet.driver.devices.device import Device
from trivet.driver.placement_facts import PlacementFacts
from trivet.framework.model.package import Package


@dataclass(frozen=True)
class Stamp:
    """None is unknown, and for `model` and `dtype` that no model was asked about."""

    model: str | None
    dtype: str | None
    cpu: str
    num_threads: int
    target: str  # of the kernels
    kernel: str | None  # of the operating system
    governor: str | None
    huge_pages: str | None  # transparent ones
    trivet: str
    commit: str | None  # None outside a checkout
    is_dirty: bool | None  # does the source differ from the commit
    date: str


def stamp(package: Package | None, facts: PlacementFacts, device: Device, target: str) -> Stamp:
    """The circumstances now; `package` is the model asked about, None where only the machine is."""
    source = Path(trivet.__file__).parent.parent
    commit = commit_of(source)
    return Stamp(
        model=None if package is None else package.source_name,
        dtype=None if package is None else package.dtype,
        cpu=device.name,
        num_threads=len(device.cpus),
        target=target,
        kernel=facts.kernel,
        governor=_governor(facts.cpus.governors),
        huge_pages=facts.memory.transparent_huge_pages,
        trivet=trivet.__version__,
        commit=commit,
        # Only what figures depend on: rows appended to the results would make every later one dirty.
        is_dirty=None if commit is None else bool(_git(source, "status", "--porcelain", "--", "trivet", "native")),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def commit_of(source: Path) -> str | None:
    """The commit of the checkout that `source` is the root of; None where the package is not part of one."""
    # Installed below the checkout of something else, Trivet would take that one's commit for its own.
    is_ours = _git(source, "ls-files", "--error-unmatch", "trivet/__init__.py")
    return _git(source, "rev-parse", "HEAD") if is_ours else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _governor(governors: dict[str, str] | None) -> str | None:
    if governors is None:
        return None
    return ",".join(sorted(set(governors.values()))) or "none"
