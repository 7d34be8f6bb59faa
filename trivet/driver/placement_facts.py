"""What of a host says where threads and memory go, as a value: all that a start reads. A part of `facts.HostFacts`.

What holds there of None, of sizes and of limits holds here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Limit = int | Literal["unlimited"]
PageMode = Literal["always", "madvise", "never"]
ContainerKind = Literal["none", "docker", "containerd", "kubernetes", "podman", "lxc", "other"]


@dataclass(frozen=True)
class Cpus:
    """The processors, and which of them the process that read may run on."""

    model: str | None
    features: tuple[str, ...] | None  # the instruction sets that choose a kernel target, of those this CPU has
    online: tuple[int, ...] | None
    allowed: tuple[int, ...] | None  # the affinity mask of the process that read
    cores: tuple[tuple[int, ...], ...] | None  # each physical core as the ids of its hardware threads
    governors: dict[str, str] | None  # by cpufreq policy; empty where nothing scales the frequency


@dataclass(frozen=True)
class HugePages:
    """The huge pages of one size that a node has reserved."""

    page_bytes: int
    total: int  # pages reserved on the node
    free: int


@dataclass(frozen=True)
class NumaNode:
    """A node: its CPUs, its memory, and how far the others are."""

    id: int
    cpus: tuple[int, ...] | None
    memory_total_bytes: int | None
    memory_free_bytes: int | None  # without the page cache
    distances: dict[int, int] | None  # to every node by id, 10 is local
    huge_pages: tuple[HugePages, ...] | None


@dataclass(frozen=True)
class Memory:
    """The host's memory, over all nodes."""

    total_bytes: int | None
    available_bytes: int | None  # the kernel's estimate: free, and what it can reclaim without swapping
    transparent_huge_pages: PageMode | None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    swappiness: int | None = None


@dataclass(frozen=True)
class Cgroup:
    """The limits on the reading process, each the tightest on the way from its own group to the root."""

    memory_limit_bytes: Limit | None
    memory_left_bytes: Limit | None  # the limit less what is used, with the page cache it could drop
    cpu_quota: float | Literal["unlimited"] | None  # CPUs, not percent
    max_processes: Limit | None = None  # threads count


@dataclass(frozen=True)
class ProcessLimit:
    """A limit of the reading process, and how far it may raise it."""

    soft: Limit
    hard: Limit


@dataclass(frozen=True)
class ProcessLimits:
    """Those limits of the reading process that bound a server."""

    open_files: ProcessLimit | None
    locked_memory_bytes: ProcessLimit | None
    processes: ProcessLimit | None
    core_file_bytes: ProcessLimit | None


@dataclass(frozen=True)
class PciDevice:
    """A device on the PCI bus, its link in gigatransfers per second and lanes."""

    address: str  # "0000:c1:00.0"
    class_code: int  # 24 bits: class, subclass, interface
    vendor: int
    device: int
    numa_node: int | None
    kernel_driver: str | None  # None also where no driver is bound
    link_gts: float | None  # GT/s per lane
    max_link_gts: float | None
    link_width: int | None  # lanes
    max_link_width: int | None
    near_cpus: tuple[int, ...] | None = None
    bridges: tuple[str, ...] | None = None  # the PCI addresses above it, the root port first
    interrupts: tuple[int, ...] | None = None  # the numbers of its message interrupts
    iommu_group: int | None = None
    iommu_mode: str | None = None  # "DMA", "DMA-FQ" or "identity", which passes addresses through


@dataclass(frozen=True)
class DeviceNode:
    """A file through which a driver is asked."""

    path: str  # "/dev/davinci0"
    mode: int | None  # permission bits
    uid: int | None
    gid: int | None
    is_accessible: bool | None  # may the reading process read and write it
    is_character: bool | None = None


@dataclass(frozen=True)
class Container:
    """What the reading process is inside of."""

    kind: ContainerKind
    evidence: str  # what gave it away, or where nothing was found


@dataclass(frozen=True)
class Filesystem:
    """The filesystem that holds, or would hold, `path`."""

    path: str
    mount_point: str | None
    type: str | None
    options: tuple[str, ...] | None
    free_bytes: int | None  # for a process without privileges
    source: str | None = None  # what is mounted: "/dev/nvme0n1p2", "server:/export"
    disk: str | None = None  # the name of the `BlockDevice` that it is on, "nvme0n1"
    is_network: bool | None = None
    total_bytes: int | None = None


@dataclass(frozen=True)
class PlacementFacts:
    """All that a start reads of a host."""

    kernel: str | None
    architecture: str | None
    cpus: Cpus
    nodes: tuple[NumaNode, ...] | None
    numa_balancing: bool | None
    memory: Memory
    cgroup: Cgroup
    limits: ProcessLimits
    container: Container | None
    pci: tuple[PciDevice, ...] | None  # all of them: what an id means is a judgement
    device_nodes: tuple[DeviceNode, ...] | None  # the Ascend driver's: see readers.device_nodes
    filesystems: tuple[Filesystem, ...]  # one for each path that was asked for, in that order
