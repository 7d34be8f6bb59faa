"""How much host memory can be pinned for an NPU to copy from: a pure function of the facts. It pins nothing itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trivet.base.units import GIB
from trivet.driver.facts import HostFacts
from trivet.driver.topology import available_memory

# Source: HIXL (hicann/hixl) on registering host memory: 20 GB below HDK 25.5, 1 TB from there on.
_FROM = (25, 5)
_BEFORE_BYTES, _SINCE_BYTES = 20 * 10**9, 1024 * GIB
MEMLOCK, MEMORY = "ulimit -l", "memory"  # names of bounds; the third is the driver's, with its version
_CAP_IPC_LOCK = 14  # capabilities(7): who has it is not bound by the limit on locked memory


@dataclass(frozen=True)
class Bound:
    """One thing that limits it."""

    name: str  # "HDK 24.1.rc3", "ulimit -l", "memory"
    num_bytes: int


def pinning_bounds(facts: HostFacts) -> tuple[Bound, ...]:
    """Each bound that is known, the tightest first; what is not among them is unknown, or does not bind."""
    bounds = [_driver(facts), _limit(facts), _memory(facts)]
    return tuple(sorted((bound for bound in bounds if bound is not None), key=lambda bound: bound.num_bytes))


def hdk_version(facts: HostFacts) -> str | None:
    """The driver's version: as its file says, which needs no tool, else as npu-smi does."""
    file = facts.stack.driver.version if facts.stack is not None and facts.stack.driver is not None else None
    return file or (facts.npu_smi.driver_version if facts.npu_smi is not None else None)


def _driver(facts: HostFacts) -> Bound | None:
    version = hdk_version(facts)
    match = re.match(r"(\d{1,3})\.(\d{1,3})(?:\.|$)", version or "", re.ASCII)
    if match is None:
        return None
    is_new = (int(match[1]), int(match[2])) >= _FROM
    return Bound(f"HDK {version}", _SINCE_BYTES if is_new else _BEFORE_BYTES)


def _limit(facts: HostFacts) -> Bound | None:
    limit, process = facts.limits.locked_memory_bytes, facts.process
    if limit is None or limit.soft == "unlimited":
        return None
    if process is not None and process.capabilities is not None and process.capabilities >> _CAP_IPC_LOCK & 1:
        return None
    return Bound(MEMLOCK, limit.soft)


def _memory(facts: HostFacts) -> Bound | None:
    available = available_memory(facts)
    return None if available is None else Bound(MEMORY, available)
