"""How a range of a file is read: the engines there are, and which is right for what is true of the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from trivet.base.errors import ResourceError
from trivet.base.units import KIB, MIB
from trivet.framework.model.loading.extents import BLOCK_BYTES
from trivet.framework.model.loading.source import FileFacts

EngineName = Literal["io_uring", "direct", "buffered", "mapped"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)

# Clients of another machine: O_DIRECT turns their read-ahead off, and a read is a round trip.
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "glusterfs", "beegfs", "gpfs", "afs", "9p", "virtiofs")
_IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")

# Below it, the disk would be idle for the share that is in memory; above it, memory would be read twice.
_RESIDENT_SHARE = 0.5
# What is missing of a mapped file is read in small pieces, one after the other: more of it, and copying is as fast.
_MAPPED_SHARE = 0.9

_READ_BYTES = 4 * MIB  # 1 MiB at depth 8 lost a quarter of a disk's speed, 16 MiB gained nothing (ext4, virtio)
_NUM_BLOCKED = 16  # threads that wait in a read each: the device is full from 4 on, and hashing takes some of them
_NUM_RINGS = 2  # one hashes while the other submits
_DEPTH = 16
_WARM_BYTES = 512 * KIB  # copied, then hashed out of the L2 cache


@dataclass(frozen=True)
class Engine:
    """How reads are made: the arguments of `trivet._native.Reading`."""

    name: EngineName
    block: int
    piece_bytes: int
    num_workers: int
    depth: int


@dataclass(frozen=True)
class Choice:
    """An engine, and why it is that one."""

    engine: Engine
    reason: str


def engine_named(name: EngineName, num_cpus: int, is_waiting: bool = True) -> Engine:
    """The engine called `name`. `is_waiting`: for storage, so that more threads than CPUs are busy; not for memory."""
    if name == "io_uring":
        return Engine(name, BLOCK_BYTES, _READ_BYTES, _NUM_RINGS, _DEPTH)
    if name == "direct":
        return Engine(name, BLOCK_BYTES, _READ_BYTES, _NUM_BLOCKED, 0)
    if name == "mapped":
        return Engine(name, BLOCK_BYTES, _READ_BYTES, num_cpus, 0)
    if is_waiting:
        return Engine(name, 1, _READ_BYTES, _NUM_BLOCKED, 0)
    return Engine(name, 1, _WARM_BYTES, num_cpus, 0)


def choose(
    facts: FileFacts,
    resident: float | None,
    ring_refusal: str,
    num_cpus: int,
    asked: EngineName | None = None,
    may_map: bool = False,
) -> Choice:
    """How to read a range of the file, `resident` of which is in the page cache (None: unknown).

    `ring_refusal` says why this process has no io_uring, "" if it has; `may_map` whether a file may stand where it
    would be read to. `asked` overrules, within what is possible: raises ResourceError for an engine that cannot read
    this file here.
    """
    if asked is not None:
        _refuse(asked, facts, ring_refusal, may_map)
        return Choice(engine_named(asked, num_cpus, resident is None or resident < _RESIDENT_SHARE), "asked for")
    may_map = may_map and facts.map_refusal is None
    if is_in_memory(facts):
        name: EngineName = "mapped" if may_map else "buffered"
        return Choice(engine_named(name, num_cpus, False), f"{facts.filesystem} lies in memory")
    if may_map and resident is not None and resident >= _MAPPED_SHARE:
        return Choice(engine_named("mapped", num_cpus), f"{resident:.0%} is in the page cache")
    if resident is not None and resident >= _RESIDENT_SHARE:
        return Choice(engine_named("buffered", num_cpus, False), f"{resident:.0%} is in the page cache")
    if _is_remote(facts.filesystem):
        return Choice(engine_named("buffered", num_cpus), f"{facts.filesystem} is another machine's: read ahead")
    if facts.direct_refusal is not None:
        return Choice(engine_named("buffered", num_cpus), facts.direct_refusal)
    cold = "it is not in the page cache" if resident is not None else "what is in the page cache is unknown"
    if ring_refusal:
        return Choice(engine_named("direct", num_cpus), f"{cold}, {ring_refusal}")
    return Choice(engine_named("io_uring", num_cpus), cold)


def is_in_memory(facts: FileFacts) -> bool:
    """Is there no storage below the file?"""
    return facts.filesystem in _IN_MEMORY


def _is_remote(filesystem: str | None) -> bool:
    return filesystem is not None and (filesystem in _REMOTE or filesystem.startswith("fuse"))


def _refuse(asked: EngineName, facts: FileFacts, ring_refusal: str, may_map: bool) -> None:
    reason = None
    if asked == "mapped":
        reason = facts.map_refusal if may_map else "it goes into memory that no file can stand in"
    elif asked != "buffered":
        reason = facts.direct_refusal
    if asked == "io_uring":
        reason = reason or ring_refusal or None
    if reason is not None:
        raise ResourceError(f"--engine {asked}: {facts.path}: {reason}", "--engine buffered, or leave the option out")
