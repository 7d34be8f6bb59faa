"""Reads the control groups of the process, version 1, 2 or both: how much memory and CPU it may use.

A group is bound by every group above it, so each answer is the tightest on the way up. In a container the way up ends
at what is mounted there, which is all the container may see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar

from trivet.driver.placement_facts import Cgroup, Limit
from trivet.driver.readers.files import exists, integer, read_integer, read_text, read_word
from trivet.driver.readers.mounts import Mount, read_mounts

# Version 1 writes "no limit" as the largest multiple of the page size in 63 bits; no host has an exabyte.
_UNLIMITED_BYTES = 1 << 60

Quota = float | Literal["unlimited"]
_Bound = TypeVar("_Bound", Limit, Quota)


@dataclass(frozen=True)
class _Group:
    """A controller's directory of one group, and which version's files it holds."""

    version: Literal[1, 2]
    directory: str


def read_cgroup(root: Path) -> Cgroup:
    mounts, membership = read_mounts(root), read_text(root, "proc/self/cgroup")
    if mounts is None or membership is None:
        return Cgroup(None, None, None, None)
    groups = _membership(membership)
    memory = [_memory(root, group) for group in _way_up(root, mounts, groups, "memory")]
    quotas = [_quota(root, group) for group in _way_up(root, mounts, groups, "cpu")]
    return Cgroup(
        memory_limit_bytes=_tightest([limit for limit, _ in memory]),
        memory_left_bytes=_tightest([left for _, left in memory]),
        cpu_quota=_tightest(quotas),
        max_processes=_tightest([_processes(root, group) for group in _way_up(root, mounts, groups, "pids")]),
    )


def _membership(text: str) -> dict[str, str]:
    """The process's group by controller, from `4:memory:/group`; that of version 2 has an empty name."""
    rows = (line.split(":", 2) for line in text.splitlines())
    return {controller: row[2] for row in rows if len(row) == 3 for controller in row[1].split(",")}


def _way_up(root: Path, mounts: tuple[Mount, ...], groups: dict[str, str], controller: str) -> Iterator[_Group]:
    """The directories that bind the process, its own group first and the mount's root last."""
    for mount in mounts:
        if mount.type == "cgroup" and controller in mount.super_options:
            version, group = 1, groups.get(controller)
        elif mount.type == "cgroup2":
            version, group = 2, groups.get("")
        else:
            continue
        if group is None:
            continue
        inside = _inside(group, mount.root)
        for level in (inside, *inside.parents):
            directory = f"{mount.point}/{level}"
            if exists(root, directory):
                yield _Group(1 if version == 1 else 2, directory)


def _inside(group: str, mount_root: str) -> PurePosixPath:
    """The group as the mount shows it.

    A container that shares the host's cgroup namespace has the host's path and a mount of that path's end only; one
    whose process sits above its namespace has a path of `..`, and sees no more than the mount.
    """
    path = PurePosixPath(group)
    if ".." in path.parts or not path.is_relative_to(mount_root):
        return PurePosixPath()
    return path.relative_to(mount_root)


def _memory(root: Path, group: _Group) -> tuple[Limit | None, Limit | None]:
    """A group's limit, and what is left under it."""
    names = (
        ("memory.max", "memory.current") if group.version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    word = read_word(root, f"{group.directory}/{names[0]}")
    if word == "max" or (word is None and _is_unbound(root, group)):
        return "unlimited", "unlimited"
    limit = integer(word)
    if limit is None:
        return None, None
    if limit >= _UNLIMITED_BYTES:
        return "unlimited", "unlimited"
    used = read_integer(root, f"{group.directory}/{names[1]}")
    if used is None:
        return limit, None
    return limit, max(0, limit - used + _droppable(root, group))


def _droppable(root: Path, group: _Group) -> int:
    """Page cache that nobody used lately: the group gives it back before it runs out (as Kubernetes counts it)."""
    name = "inactive_file" if group.version == 2 else "total_inactive_file"
    rows = (line.split() for line in (read_text(root, f"{group.directory}/memory.stat") or "").splitlines())
    return next((integer(row[1]) or 0 for row in rows if len(row) == 2 and row[0] == name), 0)


def _quota(root: Path, group: _Group) -> Quota | None:
    """How many CPUs a group may use on average."""
    if group.version == 2:
        words = (read_text(root, f"{group.directory}/cpu.max") or "").split()
        if not words and _is_unbound(root, group):
            return "unlimited"
        quota, period = (words[0], integer(words[1])) if len(words) == 2 else (None, None)
    else:
        quota = read_word(root, f"{group.directory}/cpu.cfs_quota_us")
        period = read_integer(root, f"{group.directory}/cpu.cfs_period_us")
    if quota in ("max", "-1"):
        return "unlimited"
    microseconds = integer(quota)
    return microseconds / period if microseconds and period else None


def _processes(root: Path, group: _Group) -> Limit | None:
    """How many processes and threads; both versions call the file the same, and neither's root group has it."""
    word = read_word(root, f"{group.directory}/pids.max")
    unbound = word == "max" or (word is None and exists(root, f"{group.directory}/cgroup.procs"))
    return "unlimited" if unbound else integer(word)


def _is_unbound(root: Path, group: _Group) -> bool:
    """The root group of version 2, and one whose controller is off, lack the file of the limit: nothing binds there."""
    return group.version == 2 and exists(root, f"{group.directory}/cgroup.procs")


def _tightest(bounds: list[_Bound | None]) -> _Bound | None:
    """The least of the numbers; unlimited if that is all there is; unknown if any is."""
    known = [bound for bound in bounds if bound is not None]
    if not known or len(known) < len(bounds):
        return None
    return min(known, key=lambda bound: inf if isinstance(bound, str) else bound)
