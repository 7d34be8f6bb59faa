"""What is true of a host, as one value. It judges nothing: `checks` and `topology` do, as pure functions of it.

`None` always means unknown: the file was absent, unreadable or odd. An empty tuple means that the host was asked and
has none. Sizes are bytes; a limit that the kernel does not impose is the word "unlimited". Every part encodes to JSON
with msgspec and decodes to an equal value. What was not asked, in a value that an older version wrote or that a test
made by hand, is unknown as well: that is what the defaults say.

What the kernel shows is here, and of that what a start needs in `placement_facts`; what the NPU's tools print is in
`npu_facts`, what is installed in `stack_facts`, and what `--probe` tried in `probe_facts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trivet.driver.npu_facts import NpuDevice, NpuNetwork, NpuSmi
from trivet.driver.placement_facts import Filesystem, PlacementFacts
from trivet.driver.probe_facts import MasterProbe, PinningProbe, ReadingProbe, StackProbe
from trivet.driver.stack_facts import Stack

FolderPurpose = Literal["logs", "caches", "temporary files"]


@dataclass(frozen=True)
class Process:
    """The process that reads: what its user may do."""

    uid: int | None
    gids: tuple[int, ...] | None  # effective and supplementary
    capabilities: int | None  # the effective set, as the kernel's bit mask
    seccomp: int | None  # 0 off, 1 strict, 2 filtered


@dataclass(frozen=True)
class KernelModule:
    name: str
    state: str | None  # "Live", "Loading", "Unloading"
    version: str | None


@dataclass(frozen=True)
class Interrupt:
    """One line of an NPU, a disk or a network card, and who serves it."""

    number: int
    name: str  # as the driver calls it: "nvme0q3", "sq_send_trigger_irq"
    address: str | None  # of the PCI device it belongs to
    count: int  # since the machine started
    served_by: tuple[int, ...]  # the CPUs that have served it, the eight busiest in order
    allowed_cpus: tuple[int, ...] | None  # smp_affinity_list
    effective_cpus: tuple[int, ...] | None


@dataclass(frozen=True)
class NvmeController:
    name: str  # "nvme0"
    transport: str | None  # "pcie", "rdma", "tcp", "fc", "loop"
    state: str | None  # "live", "resetting"
    model: str | None
    address: str | None  # of the PCI device; None over a fabric
    numa_node: int | None
    num_queues: int | None  # the queue of commands included


@dataclass(frozen=True)
class BlockDevice:
    name: str  # "nvme0n1", "sda", "dm-0"
    size_bytes: int | None
    scheduler: str | None  # the bracketed one
    is_polled: bool | None  # may a read poll for its completion (queue/io_poll)
    queue_depth: int | None  # nr_requests
    read_ahead_bytes: int | None
    logical_block_bytes: int | None
    is_rotational: bool | None
    numa_node: int | None
    controllers: tuple[str, ...]  # of NVMe: the names of those that lead to it
    below: tuple[str, ...]  # the disks that it is made of: a volume's, a RAID's


@dataclass(frozen=True)
class NvmeSettings:
    """Parameters of the kernel's nvme module."""

    poll_queues: int | None
    write_queues: int | None


@dataclass(frozen=True)
class NetworkInterface:
    name: str
    state: str | None  # "up", "down", "unknown" (which is what the loopback says)
    speed_mbps: int | None
    has_ipv4_route: bool | None
    has_ipv6: bool | None  # an address that reaches further than the link
    address: str | None  # of the PCI device
    numa_node: int | None


@dataclass(frozen=True)
class KernelLog:
    """The lines of the kernel's log that concern NPUs, their bus, disks or memory that ran out; the newest last."""

    source: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Clock:
    is_synchronised: bool  # by the kernel's own word
    max_error_s: float | None


@dataclass(frozen=True)
class WorkingFolder:
    """Where CANN and what runs on it write: the nearest folder that exists."""

    purpose: FolderPurpose
    path: str  # that would be written to
    is_writable: bool | None
    free_bytes: int | None


@dataclass(frozen=True)
class LogErrors:
    """The first error of each process in its newest log, or the lines of a log that are known to say why."""

    source: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Cluster:
    """What files and processes of this host say of Kubernetes, the container runtime and Ray; nobody is asked."""

    kubelet_devices: dict[str, int] | None  # devices that plugins registered, by resource: {"huawei.com/Ascend910": 8}
    plugin_log: LogErrors | None  # of MindCluster's device plugin
    runtimes: tuple[str, ...] | None  # that docker and containerd are told of, "ascend"
    ray_resources: dict[str, float] | None  # of the raylet that runs here: {"CPU": 192.0, "NPU": 8.0}


@dataclass(frozen=True)
class HostFacts(PlacementFacts):
    distribution: str | None = None  # "openEuler 22.03 (LTS-SP4)"
    libc: str | None = None  # "glibc 2.34"
    product: str | None = None  # of the machine, as its firmware says
    is_virtual: bool | None = None  # does a hypervisor run it
    process: Process | None = None
    kernel_parameters: tuple[str, ...] | None = None  # the kernel's command line, of those that matter here
    modules: tuple[KernelModule, ...] | None = None  # the Ascend driver's
    driver_releases: tuple[str, ...] | None = None  # the kernels that the Ascend driver's modules were installed for
    has_kernel_headers: bool | None = None  # of the kernel that runs, which the driver's installer may need
    iommu_groups: int | None = None  # how many; 0 where no IOMMU is in use
    interrupts: tuple[Interrupt, ...] | None = None
    has_irqbalance: bool | None = None
    nvme: tuple[NvmeController, ...] | None = None
    nvme_settings: NvmeSettings | None = None
    disks: tuple[BlockDevice, ...] | None = None
    network: tuple[NetworkInterface, ...] | None = None
    listening_ports: tuple[int, ...] | None = None  # TCP, in this network namespace
    shared_memory: Filesystem | None = None  # /dev/shm
    kernel_log: KernelLog | None = None
    npu_smi: NpuSmi | None = None
    npu_network: NpuNetwork | None = None
    npu_devices: tuple[NpuDevice, ...] | None = None
    stack: Stack | None = None
    local_addresses: tuple[str, ...] | None = None  # IPv4, of this host's interfaces
    clock: Clock | None = None
    folders: tuple[WorkingFolder, ...] | None = None
    plog: LogErrors | None = None
    cluster: Cluster | None = None
    gone_processes: tuple[int, ...] | None = None  # those that npu-smi lists and this host has not
    reading: tuple[ReadingProbe, ...] | None = None
    pinning: PinningProbe | None = None
    running: StackProbe | None = None
    master: MasterProbe | None = None
