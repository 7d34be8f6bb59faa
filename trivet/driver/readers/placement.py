"""Reads of a host what says where threads and memory go: all that a start needs, and light to import."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.driver.placement_facts import Cpus, Memory, PlacementFacts
from trivet.driver.readers.cgroup import read_cgroup
from trivet.driver.readers.container import read_container
from trivet.driver.readers.device_nodes import read_device_nodes
from trivet.driver.readers.files import is_live, read_integer
from trivet.driver.readers.filesystem import read_filesystem
from trivet.driver.readers.procfs import (
    read_allowed,
    read_features,
    read_kernel,
    read_limits,
    read_meminfo,
    read_model,
    read_numa_balancing,
)
from trivet.driver.readers.sysfs_cpu import read_cores, read_governors, read_online
from trivet.driver.readers.sysfs_node import read_nodes, read_page_mode
from trivet.driver.readers.sysfs_pci import read_pci

if TYPE_CHECKING:
    from trivet.driver.readers.captured import Captured


def read_placement_facts(
    root: Path = Path("/"), paths: Iterable[str] = (), captured: Captured | None = None
) -> PlacementFacts:
    """What says where threads and memory go, and the filesystems of `paths`.

    A start needs no more than this: it takes milliseconds, and no tool is run. Never raises.
    """
    if captured is None and not is_live(root):
        from trivet.driver.readers.captured import read_captured  # which no start needs

        captured = read_captured(root)
    online, meminfo = read_online(root), read_meminfo(root)
    return PlacementFacts(
        kernel=read_kernel(root),
        architecture=captured.architecture if captured and not is_live(root) else platform.machine() or None,
        cpus=Cpus(
            model=read_model(root),
            features=read_features(root),
            online=online,
            allowed=read_allowed(root),
            cores=read_cores(root, online),
            governors=read_governors(root),
        ),
        nodes=read_nodes(root),
        numa_balancing=read_numa_balancing(root),
        memory=Memory(
            total_bytes=meminfo.get("MemTotal"),
            available_bytes=meminfo.get("MemAvailable"),
            transparent_huge_pages=read_page_mode(root),
            swap_total_bytes=meminfo.get("SwapTotal"),
            swap_free_bytes=meminfo.get("SwapFree"),
            swappiness=read_integer(root, "proc/sys/vm/swappiness"),
        ),
        cgroup=read_cgroup(root),
        limits=read_limits(root),
        container=read_container(root),
        pci=read_pci(root),
        device_nodes=read_device_nodes(root, captured),
        filesystems=tuple(read_filesystem(root, path, captured) for path in paths),
    )
