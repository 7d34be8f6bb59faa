"""Checks of the host itself: CPU, memory and disk, and the limits on the process. They hold with an NPU and without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from trivet.base.units import format_bytes
from trivet.driver.check import Judgement, check, failed, not_asked, note, passed, unknown, unread, warning
from trivet.driver.facts import HostFacts
from trivet.driver.need import Need
from trivet.driver.topology import available_memory, choose_node, quota_threads, usable_cores
from trivet.driver.versions import version_key

_SGLANG = "SGLang docs, Ascend NPU optimization: system-level settings"
_MSPRECHECKER = "msprechecker of MindStudio: its rules for inference hosts"
_here = partial(check, layer="user-config")

# One descriptor for each open connection: 1024, the usual soft limit, is fewer than the clients one server is given.
_MIN_OPEN_FILES = 4096
# What is asked for instead: the figure that container runtimes and Ascend serving guides use.
_OPEN_FILES = 65535
# One thread for each core and worker, and as many again of HCCL and the runtime.
_MIN_PROCESSES = 4096
_OLDEST_KERNEL, _GOOD_KERNEL = "4.19", "5.10"


@_here("DRV001", "warning", source="the targets that native/ is compiled for: avx512bf16, avx512, avx2, neon, scalar")
def cpu_features_missing(facts: HostFacts, need: Need) -> Judgement:
    features = facts.cpus.features
    if features is None:
        return unknown("the CPU's instruction sets could not be read from /proc/cpuinfo")
    if {"avx2", "fma"} <= set(features) or "asimd" in features:
        return passed("the CPU has {features}", features=", ".join(features))
    return warning(
        "the CPU has neither AVX2 with FMA nor Arm ASIMD (it has {features}): scalar kernels run, many times slower",
        "in a virtual machine, pass the host's CPU through (qemu: -cpu host)",
        features=", ".join(features) or "none of those known",
    )


@_here("DRV002", "note", source="Linux Documentation/admin-guide/mm/numaperf.rst")
def numa_topology_unknown(facts: HostFacts, need: Need) -> Judgement:
    node, _ = choose_node(facts)
    if node is None:
        return unknown("no NUMA node with a usable CPU could be read, so threads are placed without regard to memory")
    if facts.cpus.cores is None:
        return unknown("which CPUs share a physical core could not be read, so each is taken for one")
    return passed("NUMA nodes: {count}; threads go to node {node}", count=len(facts.nodes or ()), node=node.id)


@_here("DRV003", "warning", source="Linux Documentation/scheduler/sched-bwc.rst", needs=("numa_topology_unknown",))
def cpu_quota_tight(facts: HostFacts, need: Need) -> Judgement:
    quota, threads = facts.cgroup.cpu_quota, quota_threads(facts)
    if quota is None:
        return unread("the cgroup's CPU quota")
    if quota == "unlimited" or threads is None:
        return passed("no CPU quota binds this process")
    node, _ = choose_node(facts)
    cores = len(usable_cores(facts, node))
    if threads >= cores:
        return passed("the quota of {quota:g} CPUs feeds all {cores} cores", quota=quota, cores=cores)
    return warning(
        "the cgroup's quota of {quota:g} CPUs feeds {threads} of {cores} cores, and no more threads are started",
        "docker run --cpus {cores}, or the pod's resources.limits.cpu",
        quota=quota, threads=threads, cores=cores,
    )  # fmt: skip


@_here("DRV004", "warning", source=_SGLANG, needs=("numa_topology_unknown",))
def numa_balancing_on(facts: HostFacts, need: Need) -> Judgement:
    if len(facts.nodes or ()) == 1:
        return passed("there is one NUMA node, so the kernel has nothing to balance")
    if facts.numa_balancing is None:
        return unread("kernel.numa_balancing")
    if not facts.numa_balancing:
        return passed("the kernel does not balance pages between nodes")
    return warning(
        "the kernel unmaps pages to see who touches them; threads pinned beside their memory only pay the faults",
        "sysctl -w kernel.numa_balancing=0",
    )


@_here("DRV005", "warning", source=_SGLANG)
def cpu_governor_saves_power(facts: HostFacts, need: Need) -> Judgement:
    governors = facts.cpus.governors
    if governors is None:
        return unread("the frequency governors in /sys/devices/system/cpu/cpufreq")
    if not governors:
        return passed("nothing scales the CPU's frequency here, as in most virtual machines")
    saving = sorted(set(governors.values()) - {"performance"})
    if not saving:
        return passed("every CPU's governor is performance")
    return _on_host(
        facts, warning,
        "{count} of {total} frequency policies use {saving}: a step after a pause starts slow",
        "cpupower frequency-set -g performance",
        count=sum(governor in saving for governor in governors.values()), total=len(governors),
        saving=", ".join(saving),
    )  # fmt: skip


@_here("DRV006", "warning", source="Linux Documentation/admin-guide/mm/transhuge.rst")
def huge_pages_off(facts: HostFacts, need: Need) -> Judgement:
    mode = facts.memory.transparent_huge_pages
    if mode is None:
        return unread("the mode of transparent huge pages")
    if mode != "never":
        return passed("transparent huge pages: {mode}", mode=mode)
    return _on_host(
        facts,
        warning,
        "transparent huge pages: never, so weights are read through 4 KiB pages and every miss of the TLB is paid",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )


@_here("DRV007", "error", source="Linux Documentation/filesystems/proc.rst: MemAvailable; cgroup-v2.rst: memory.max")
def memory_short(facts: HostFacts, need: Need) -> Judgement:
    available = available_memory(facts)
    if available is None:
        return unread("the memory available in /proc/meminfo")
    free = format_bytes(available)
    if need.memory_bytes is None:
        return not_asked("{free} of memory available, held against no model", free=free)
    sizes = {"free": free, "needed": format_bytes(need.memory_bytes)}
    left = facts.cgroup.memory_left_bytes
    if need.memory_bytes <= available and left is None:
        return unknown(
            "{free} of memory available, at least {needed} needed, but the cgroup's limit is unknown", **sizes
        )
    if need.memory_bytes <= available:
        return passed("{free} of memory available, at least {needed} needed", **sizes)
    if isinstance(left, int) and left == available:
        return failed(
            "{free} of memory available, at least {needed} needed (the cgroup's limit binds)",
            "docker run --memory, or the pod's resources.limits.memory",
            **sizes,
        )
    return failed(
        "{free} of memory available, at least {needed} needed",
        "ps aux --sort=-rss | head  # who holds it",
        "choose a smaller model or a smaller KV pool",
        **sizes,
    )


@_here("DRV008", "warning", source="Linux Documentation/admin-guide/mm/numa_memory_policy.rst", needs=("memory_short",))
def node_memory_short(facts: HostFacts, need: Need) -> Judgement:
    node, _ = choose_node(facts)
    assert need.memory_bytes is not None, "memory_short holds only against a need"
    if node is None or node.memory_free_bytes is None:
        return unread("the free memory of the chosen NUMA node")
    free = format_bytes(node.memory_free_bytes)
    if len(facts.nodes or ()) == 1 or need.memory_bytes <= node.memory_free_bytes:
        return passed("node {node} has {free} free", node=node.id, free=free)
    return _on_host(
        facts, warning,
        "node {node} has {free} free for at least {needed}: the rest lies on other nodes, up to {far:.1f} times as far",
        "sync; echo 1 | sudo tee /proc/sys/vm/drop_caches  # the page cache is not counted as free",
        node=node.id, free=free, needed=format_bytes(need.memory_bytes),
        far=max((node.distances or {}).values(), default=10) / 10,
    )  # fmt: skip


@_here("DRV009", "error", source="statvfs(3): blocks for a process without privileges")
def disk_short(facts: HostFacts, need: Need) -> Judgement:
    if need.disk_path is None:
        return not_asked("no path on disk was named")
    filesystem = next((each for each in facts.filesystems if each.path == need.disk_path), None)
    if filesystem is None or filesystem.free_bytes is None:
        return unknown("the free space at {path} could not be read", path=need.disk_path)
    place = {"path": need.disk_path, "type": filesystem.type or "a filesystem of unknown type"}
    if filesystem.options is not None and "ro" in filesystem.options:
        return failed(
            "{path} ({type}) is mounted read-only", "TRIVET_CACHE=DIR  # a directory that can be written", **place
        )
    sizes = {"free": format_bytes(filesystem.free_bytes), **place}
    if need.disk_bytes is None:
        return not_asked("{free} free at {path} ({type}), held against no model", **sizes)
    sizes["needed"] = format_bytes(need.disk_bytes)
    if need.disk_bytes <= filesystem.free_bytes:
        return passed("{free} free at {path} ({type}), at least {needed} needed", **sizes)
    return failed(
        "{free} free at {path} ({type}), at least {needed} needed",
        "df -h {path}",
        "TRIVET_CACHE=DIR  # a directory with more room",
        **sizes,
    )


@_here("DRV010", "warning", source="getrlimit(2): RLIMIT_NOFILE; one descriptor for each connection")
def open_files_low(facts: HostFacts, need: Need) -> Judgement:
    limit = facts.limits.open_files
    if limit is None:
        return unread("the limit on open files in /proc/self/limits")
    if limit.soft == "unlimited" or limit.soft >= _MIN_OPEN_FILES:
        return passed("{limit} files may be open", limit=limit.soft)
    wanted = _OPEN_FILES if limit.hard == "unlimited" else min(_OPEN_FILES, limit.hard)
    return warning(
        "{limit} files may be open, and each connection takes one; {least} are wanted",
        "ulimit -n {wanted}"
        if wanted >= _MIN_OPEN_FILES
        else "docker run --ulimit nofile={most}, or LimitNOFILE={most} in the systemd unit",
        limit=limit.soft, least=_MIN_OPEN_FILES, wanted=wanted, most=_OPEN_FILES,
    )  # fmt: skip


@_here("DRV018", "warning", source=f"{_MSPRECHECKER}: kernel 5.10 or newer")
def kernel_old(facts: HostFacts, need: Need) -> Judgement:
    key = version_key((facts.kernel or "").partition("-")[0])
    if not key:
        return unread("the kernel's release")
    if key < version_key(_OLDEST_KERNEL):
        return warning(
            "Linux {kernel} is older than {oldest}: neither io_uring nor the newer drivers run on it",
            "update the distribution, or its kernel",
            kernel=facts.kernel, oldest=_OLDEST_KERNEL,
        )  # fmt: skip
    if key < version_key(_GOOD_KERNEL):
        return note("Linux {kernel}; {good} or newer is recommended", kernel=facts.kernel, good=_GOOD_KERNEL)
    return passed("Linux {kernel}", kernel=facts.kernel)


@_here("DRV019", "note", source="Linux Documentation/admin-guide/sysctl/vm.rst: swappiness")
def swap_in_use(facts: HostFacts, need: Need) -> Judgement:
    total, free = facts.memory.swap_total_bytes, facts.memory.swap_free_bytes
    if total is None or free is None:
        return unread("the swap space")
    if total == free:
        return passed("no swap is in use")
    return note(
        "{used} of swap is in use: a page that comes back from it holds up a whole step",
        "sudo swapoff -a  # on a host that only serves",
        used=format_bytes(total - free),
    )


@_here("DRV020", "note", source="Python documentation: locale.getpreferredencoding")
def locale_not_utf8(facts: HostFacts, need: Need) -> Judgement:
    environment = facts.stack.environment if facts.stack else None
    if environment is None:
        return unread("the environment")
    named = next((environment[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environment.get(name)), None)
    if named is None or named in ("C", "POSIX") or "utf" in named.lower():
        return passed("the locale is {locale}", locale=named or "C")
    return note("the locale is {locale}, not UTF-8", "export LANG=C.UTF-8", locale=named)


@_here("DRV022", "warning", source="getrlimit(2): RLIMIT_NPROC; cgroup-v2.rst: pids.max")
def processes_few(facts: HostFacts, need: Need) -> Judgement:
    own = facts.limits.processes.soft if facts.limits.processes else None
    limits = [each for each in (own, facts.cgroup.max_processes) if isinstance(each, int)]
    if own is None and facts.cgroup.max_processes is None:
        return unread("the limit on processes")
    if not limits or min(limits) >= _MIN_PROCESSES:
        return passed("{limit} processes and threads may run", limit=min(limits, default="unlimited"))
    return warning(
        "{limit} processes and threads may run; {least} are wanted",
        "docker run --pids-limit -1 --ulimit nproc=65535, or TasksMax=infinity in the systemd unit",
        limit=min(limits), least=_MIN_PROCESSES,
    )  # fmt: skip


@_here("DRV023", "note", source="vllm-ascend issues on virtual machines; msprechecker: VM")
def host_is_virtual(facts: HostFacts, need: Need) -> Judgement:
    if facts.is_virtual is None:
        return unknown("whether a hypervisor runs this host could not be read")
    if not facts.is_virtual:
        return passed("no hypervisor runs this host")
    return note("a virtual machine: NPUs that are passed through are numbered anew, and NUMA may be made up")


@_here("DRV024", "note", source="vLLM docs: --safetensors-load-strategy; open(2): O_DIRECT")
def model_on_network_filesystem(facts: HostFacts, need: Need) -> Judgement:
    path = need.model_path or need.disk_path
    filesystem = next((each for each in facts.filesystems if each.path == path), None)
    if filesystem is None or filesystem.is_network is None:
        return unknown("whether models come over a network could not be read")
    if not filesystem.is_network:
        return passed("{path} is local ({type})", path=filesystem.path, type=filesystem.type or "type unknown")
    return note(
        "{path} comes over a network ({type}): page by page it is slow, in large pieces it is not",
        "trivet convert MODEL DIR  # onto a local disk; with vLLM: --safetensors-load-strategy eager",
        path=filesystem.path, type=filesystem.type or "type unknown",
    )  # fmt: skip


def _on_host(
    facts: HostFacts, judge: Callable[..., Judgement], detail: str, command: str, **values: object
) -> Judgement:
    """With a command that changes the kernel: a container cannot, as a rule, so it says where."""
    if facts.container is None or facts.container.kind == "none":
        return judge(detail, command, **values)
    return judge(detail, "on the host: {command}", command=command, **values)
