"""The driver leg's checks, lowest first: CPU, memory and disk, the process, then the NPU from its bus to its node."""

from __future__ import annotations

from trivet.base.findings import Finding
from trivet.base.units import format_bytes
from trivet.driver.check import Check, Judgement, check, failed, not_asked, passed, run, unknown, warning
from trivet.driver.chips import chip_of, npus
from trivet.driver.facts import HostFacts, PciDevice
from trivet.driver.need import Need
from trivet.driver.readers.device_nodes import CONTROL_NODES
from trivet.driver.topology import available_memory, choose_node, quota_threads, usable_cores

_SGLANG = "SGLang docs, Ascend NPU optimization: system-level settings"
_VLLM_ASCEND = "vllm-ascend docs, installation: the nodes a container is given"

# One descriptor for each open connection: 1024, the usual soft limit, is fewer than the clients one server is given.
_MIN_OPEN_FILES = 4096
# What is asked for instead: the figure that container runtimes and Ascend serving guides use.
_OPEN_FILES = 65535


@check("DRV001", source="the targets that native/ is compiled for: avx512, avx2, neon, scalar")
def cpu_features_missing(facts: HostFacts, need: Need) -> Judgement:
    features = facts.cpus.features
    if features is None:
        return unknown("the CPU's instruction sets could not be read from /proc/cpuinfo")
    if {"avx2", "fma"} <= set(features) or "asimd" in features:
        return passed(f"the CPU has {', '.join(features)}")
    return warning(
        f"the CPU has neither AVX2 with FMA nor Arm ASIMD (it has {', '.join(features) or 'none of those known'}), "
        "so the scalar kernels run, many times slower",
        "in a virtual machine, pass the host's CPU through (qemu: -cpu host)",
    )


@check("DRV002", source="Linux Documentation/admin-guide/mm/numaperf.rst")
def numa_topology_unknown(facts: HostFacts, need: Need) -> Judgement:
    node, reason = choose_node(facts)
    if node is None:
        return unknown("no NUMA node with a usable CPU could be read, so threads are placed without regard to memory")
    if facts.cpus.cores is None:
        return unknown("which CPUs share a physical core could not be read, so each is taken for one")
    count = len(facts.nodes or ())
    return passed(f"{count} NUMA node{'s' * (count > 1)}; threads go to node {node.id}: {reason}")


@check("DRV003", source="Linux Documentation/scheduler/sched-bwc.rst", needs=("numa_topology_unknown",))
def cpu_quota_tight(facts: HostFacts, need: Need) -> Judgement:
    quota, threads = facts.cgroup.cpu_quota, quota_threads(facts)
    if quota is None:
        return unknown("the cgroup's CPU quota could not be read")
    if quota == "unlimited" or threads is None:
        return passed("no CPU quota binds this process")
    node, _ = choose_node(facts)
    cores = len(usable_cores(facts, node))
    if threads >= cores:
        return passed(f"the quota of {quota:g} CPUs feeds all {cores} cores")
    return warning(
        f"the cgroup's quota of {quota:g} CPUs feeds {threads} of {cores} cores, and no more threads are started",
        f"docker run --cpus {cores}, or the pod's resources.limits.cpu",
    )


@check("DRV004", source=_SGLANG, needs=("numa_topology_unknown",))
def numa_balancing_on(facts: HostFacts, need: Need) -> Judgement:
    if len(facts.nodes or ()) == 1:
        return passed("there is one NUMA node, so the kernel has nothing to balance")
    if facts.numa_balancing is None:
        return unknown("kernel.numa_balancing could not be read")
    if not facts.numa_balancing:
        return passed("the kernel does not balance pages between nodes")
    return warning(
        "the kernel unmaps pages to see who touches them; threads pinned beside their memory only pay the faults",
        *_on_host(facts, "sysctl -w kernel.numa_balancing=0"),
    )


@check("DRV005", source=_SGLANG)
def cpu_governor_saves_power(facts: HostFacts, need: Need) -> Judgement:
    governors = facts.cpus.governors
    if governors is None:
        return unknown("the frequency governors could not be read from /sys/devices/system/cpu/cpufreq")
    if not governors:
        return passed("nothing scales the CPU's frequency here, as in most virtual machines")
    saving = sorted(set(governors.values()) - {"performance"})
    if not saving:
        return passed("every CPU's governor is performance")
    count = sum(governor in saving for governor in governors.values())
    return warning(
        f"{count} of {len(governors)} frequency policies use {', '.join(saving)}: a step after a pause starts slow",
        *_on_host(facts, "cpupower frequency-set -g performance"),
    )


@check("DRV006", source="Linux Documentation/admin-guide/mm/transhuge.rst")
def huge_pages_off(facts: HostFacts, need: Need) -> Judgement:
    mode = facts.memory.transparent_huge_pages
    if mode is None:
        return unknown("the mode of transparent huge pages could not be read")
    if mode != "never":
        return passed(f"transparent huge pages: {mode}")
    return warning(
        "transparent huge pages: never, so weights are read through 4 KiB pages and every miss of the TLB is paid",
        *_on_host(facts, "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
    )


@check("DRV007", source="Linux Documentation/filesystems/proc.rst: MemAvailable; cgroup-v2.rst: memory.max")
def memory_short(facts: HostFacts, need: Need) -> Judgement:
    available = available_memory(facts)
    if available is None:
        return unknown("the memory available could not be read from /proc/meminfo")
    if need.memory_bytes is None:
        return not_asked(f"{format_bytes(available)} of memory available, held against no model")
    detail = f"{format_bytes(available)} of memory available, at least {format_bytes(need.memory_bytes)} needed"
    left = facts.cgroup.memory_left_bytes
    if need.memory_bytes <= available:
        return passed(detail) if left is not None else unknown(f"{detail}, but the cgroup's limit could not be read")
    if isinstance(left, int) and left == available:
        return failed(
            f"{detail} (the cgroup's limit binds)", "docker run --memory, or the pod's resources.limits.memory"
        )
    return failed(detail, "ps aux --sort=-rss | head  # who holds it", "choose a smaller model or a smaller KV pool")


@check("DRV008", source="Linux Documentation/admin-guide/mm/numa_memory_policy.rst", needs=("memory_short",))
def node_memory_short(facts: HostFacts, need: Need) -> Judgement:
    node, _ = choose_node(facts)
    assert need.memory_bytes is not None, "memory_short holds only against a need"
    if node is None or node.memory_free_bytes is None:
        return unknown("the free memory of the chosen NUMA node could not be read")
    free = format_bytes(node.memory_free_bytes)
    if len(facts.nodes or ()) == 1 or need.memory_bytes <= node.memory_free_bytes:
        return passed(f"node {node.id} has {free} free")
    distances = (node.distances or {}).values()
    farthest = f", up to {max(distances) / 10:.1f} times as far" if distances else ""
    return warning(
        f"node {node.id} has {free} free for at least {format_bytes(need.memory_bytes)}: the rest lies on other "
        f"nodes{farthest}",
        *_on_host(facts, "sync; echo 1 | sudo tee /proc/sys/vm/drop_caches  # the page cache is not counted as free"),
    )


@check("DRV009", source="statvfs(3): blocks for a process without privileges")
def disk_short(facts: HostFacts, need: Need) -> Judgement:
    if need.disk_path is None:
        return not_asked("no path on disk was named")
    filesystem = next((each for each in facts.filesystems if each.path == need.disk_path), None)
    if filesystem is None or filesystem.free_bytes is None:
        return unknown(f"the free space at {need.disk_path} could not be read")
    place = f"{need.disk_path} ({filesystem.type or 'a filesystem of unknown type'})"
    if filesystem.options is not None and "ro" in filesystem.options:
        return failed(f"{place} is mounted read-only", "TRIVET_CACHE=DIR  # a directory that can be written")
    detail = f"{format_bytes(filesystem.free_bytes)} free at {place}"
    if need.disk_bytes is None:
        return not_asked(f"{detail}, held against no model")
    detail = f"{detail}, at least {format_bytes(need.disk_bytes)} needed"
    if need.disk_bytes <= filesystem.free_bytes:
        return passed(detail)
    return failed(detail, f"df -h {need.disk_path}", "TRIVET_CACHE=DIR  # a directory with more room")


@check("DRV010", source="getrlimit(2): RLIMIT_NOFILE; one descriptor for each connection")
def open_files_low(facts: HostFacts, need: Need) -> Judgement:
    limit = facts.limits.open_files
    if limit is None:
        return unknown("the limit on open files could not be read from /proc/self/limits")
    if limit.soft == "unlimited" or limit.soft >= _MIN_OPEN_FILES:
        return passed(f"{limit.soft} files may be open")
    wanted = _OPEN_FILES if limit.hard == "unlimited" else min(_OPEN_FILES, limit.hard)
    mend = [f"ulimit -n {wanted}"] if wanted >= _MIN_OPEN_FILES else []
    return warning(
        f"{limit.soft} files may be open, and each connection takes one; {_MIN_OPEN_FILES} are wanted",
        *(mend or [f"docker run --ulimit nofile={_OPEN_FILES}, or LimitNOFILE={_OPEN_FILES} in the systemd unit"]),
    )


@check("DRV011", source="the PCI tables of the open Ascend driver; lspci of hosts with 910 and 910B")
def npu_absent(facts: HostFacts, need: Need) -> Judgement:
    found, present = npus(facts), _numbered(facts)
    if found:
        return passed(f"{len(found)} × {', '.join(sorted({chip_of(npu) or '' for npu in found}))} on PCI")
    if present:
        return passed(f"{len(present)} NPU device nodes, and none on PCI")
    if found is None:
        return unknown("the PCI bus could not be read, so an NPU may be there")
    nodes = "no /dev/davinci*" if facts.device_nodes is not None else "whether /dev/davinci* exist is unknown"
    looked = f"no NPU among {len(facts.pci or ())} PCI devices, and {nodes}"
    if need.device == "npu":
        return failed(looked, "lspci -nn -d 19e5:  # empty: power, seating, BIOS, or pass-through in a virtual machine")
    return not_asked(f"{looked}; the CPU plan is used")


@check("DRV012", source="PCI Express link status, as sysfs shows it", needs=("npu_absent",))
def npu_link_slow(facts: HostFacts, need: Need) -> Judgement:
    found = npus(facts) or ()
    known = [npu for npu in found if _link(npu) is not None]
    slow = [npu for npu in known if (npu.link_gts, npu.link_width) != (npu.max_link_gts, npu.max_link_width)]
    if slow:
        first = slow[0]
        return warning(
            f"{len(slow)} of {len(found)} NPUs are linked below what they can: {first.address} at {_link(first)}, "
            f"of {first.max_link_gts} GT/s × {first.max_link_width}",
            f"sudo lspci -vv -s {first.address} | grep LnkSta",
            "reseat the card; look for a slower slot, riser or BIOS setting",
        )
    if not found or len(known) < len(found):
        return unknown(f"the PCI link of {len(found) - len(known)} of {len(found)} NPUs on PCI could not be read")
    return passed(f"{len(found)} NPUs linked at {_link(found[0])}")


@check("DRV013", source="sysfs numa_node is -1 where the firmware does not say", needs=("npu_absent",))
def npu_node_unknown(facts: HostFacts, need: Need) -> Judgement:
    found = npus(facts) or ()
    lost = [npu.address for npu in found if npu.numa_node is None]
    if len(facts.nodes or ()) == 1:
        return passed("there is one NUMA node")
    if not found:
        return unknown("the NPUs are not on PCI here, so which NUMA node they belong to could not be read")
    if not lost:
        return passed(f"every NPU has its NUMA node: {', '.join(str(npu.numa_node) for npu in found)}")
    return warning(
        f"{len(lost)} of {len(found)} NPUs do not say which NUMA node they belong to: {', '.join(lost)}",
        "turn NUMA on in the BIOS, or choose the CPUs by hand (taskset -c, after npu-smi info -t topo)",
    )


@check("DRV014", source="Mooncake and Ascend serving guides: memlock is unlimited", needs=("npu_absent",))
def locked_memory_low(facts: HostFacts, need: Need) -> Judgement:
    limit = facts.limits.locked_memory_bytes
    if limit is None:
        return unknown("the limit on locked memory could not be read from /proc/self/limits")
    if limit.soft == "unlimited":
        return passed("any amount of memory may be locked")
    return warning(
        f"{format_bytes(limit.soft)} of memory may be locked, and buffers that an NPU copies from are pinned",
        "docker run --ulimit memlock=-1, or LimitMEMLOCK=infinity in the systemd unit, or ulimit -l unlimited as root",
    )


@check("DRV015", source=_VLLM_ASCEND, needs=("npu_absent",))
def container_without_devices(facts: HostFacts, need: Need) -> Judgement:
    if facts.container is None:
        return unknown("whether this is a container could not be read")
    if facts.container.kind == "none":
        return passed("this is not a container")
    if facts.device_nodes is None:
        return unknown("/dev could not be listed")
    missing = _missing(facts)
    if not missing:
        return passed(f"the {facts.container.kind} container has the NPUs' device nodes")
    return _npu_fault(
        need,
        f"the {facts.container.kind} container ({facts.container.evidence}) lacks {', '.join(missing)}",
        "docker run " + " ".join(f"--device {path.replace('davinci*', 'davinci0')}" for path in missing),
        "or ask the runtime for them: ascend-docker-runtime, or the pod's resource huawei.com/Ascend910",
    )


@check("DRV016", source=_VLLM_ASCEND, needs=("npu_absent", "container_without_devices"))
def npu_without_driver(facts: HostFacts, need: Need) -> Judgement:
    if facts.device_nodes is None:
        return unknown("/dev could not be listed")
    missing = _missing(facts)
    if not missing:
        return passed(f"{len(_numbered(facts))} NPUs and {len(CONTROL_NODES)} control nodes in /dev")
    bound = sorted({npu.kernel_driver for npu in npus(facts) or () if npu.kernel_driver})
    driver = f"bound to the kernel driver {', '.join(bound)}" if bound else "not bound to a kernel driver"
    return _npu_fault(
        need,
        f"the NPUs are {driver}, and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
        "lsmod | grep drv_  # empty: the driver is not loaded, or was built for another kernel",
        "sudo ./Ascend-hdk-<chip>-npu-driver_<version>_linux-<arch>.run --full, then reboot",
    )


@check("DRV017", source="modes 0660 HwHiAiUser on hosts with the driver", needs=("npu_without_driver",))
def device_nodes_unreadable(facts: HostFacts, need: Need) -> Judgement:
    nodes = facts.device_nodes or ()
    denied = [node for node in nodes if node.is_accessible is False]
    if not denied:
        unread = [node.path for node in nodes if node.is_accessible is None]
        if unread:
            return unknown(f"whether {', '.join(unread)} may be opened could not be read")
        return passed(f"this process may open all {len(nodes)} device nodes")
    first = denied[0]
    mode = f", mode {first.mode:04o}" if first.mode is not None else ""
    in_container = facts.container is not None and facts.container.kind != "none"
    return _npu_fault(
        need,
        f"this process may not open {len(denied)} of {len(nodes)} device nodes: "
        f"{first.path} belongs to {first.uid}:{first.gid}{mode}",
        f"docker run --group-add {first.gid}"
        if in_container
        else f"sudo usermod -aG $(stat -c %G {first.path}) $USER, then log in again",
    )


# In the order they stand above, which is the order they are made in.
CHECKS: tuple[Check, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Check))


def examine(facts: HostFacts, need: Need) -> tuple[Finding, ...]:
    """What every check of the driver leg finds, in order. The leg carries unless one has failed."""
    return run(CHECKS, facts, need)


def _on_host(facts: HostFacts, command: str) -> tuple[str, ...]:
    """A command that changes the kernel: a container cannot, as a rule, so it says where."""
    if facts.container is None or facts.container.kind == "none":
        return (command,)
    return (f"on the host: {command}",)


def _npu_fault(need: Need, detail: str, *remedy: str) -> Judgement:
    """Fatal where the NPU is wanted, and only worth a word where the CPU was asked for."""
    return warning(detail, *remedy) if need.device == "cpu" else failed(detail, *remedy)


def _numbered(facts: HostFacts) -> tuple[str, ...]:
    return tuple(node.path for node in facts.device_nodes or () if node.path not in CONTROL_NODES)


def _missing(facts: HostFacts) -> tuple[str, ...]:
    present = {node.path for node in facts.device_nodes or ()}
    numbered = () if _numbered(facts) else ("/dev/davinci*",)
    return (*numbered, *(path for path in CONTROL_NODES if path not in present))


def _link(npu: PciDevice) -> str | None:
    """The link as it is, if it and its best are all known."""
    if None in (npu.link_gts, npu.link_width, npu.max_link_gts, npu.max_link_width):
        return None
    return f"{npu.link_gts} GT/s × {npu.link_width}"
