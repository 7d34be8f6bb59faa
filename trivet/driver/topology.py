"""Where to run: the NUMA node and the CPUs that the facts imply. Pure functions; nothing is read or pinned here."""

from __future__ import annotations

from dataclasses import dataclass

from trivet.base.errors import ResourceError
from trivet.base.units import format_bytes
from trivet.driver.chips import npus
from trivet.driver.phrases import Phrase
from trivet.driver.placement_facts import NumaNode, PlacementFacts

Core = tuple[int, ...]  # the hardware threads of one physical core

_FAR = 1 << 16  # above any distance of the firmware's table, which has a byte for each


@dataclass(frozen=True)
class Placement:
    """The CPUs to pin threads to, one each and in order, and the node their memory should come from."""

    cpus: tuple[int, ...]
    node: int | None  # None where the topology is unknown, or where no single node holds all the CPUs
    reason: Phrase


def usable_cpus(facts: PlacementFacts) -> tuple[int, ...] | None:
    """The CPUs that are online and that this process may use; None if neither is known."""
    online, allowed = facts.cpus.online, facts.cpus.allowed
    if online is None or allowed is None:
        return allowed if online is None else online
    return tuple(cpu for cpu in allowed if cpu in set(online))


def usable_cores(facts: PlacementFacts, node: NumaNode | None = None) -> tuple[Core, ...]:
    """The physical cores with a usable CPU (on `node`), each as its usable CPUs.

    Where nobody says which CPUs share a core, each counts as one.
    """
    usable = set(usable_cpus(facts) or ())
    if node is not None:
        usable &= set(node.cpus or ())
    cores = facts.cpus.cores or tuple((cpu,) for cpu in sorted(usable))
    kept = (tuple(cpu for cpu in core if cpu in usable) for core in cores)
    return tuple(core for core in kept if core)


def choose_node(facts: PlacementFacts) -> tuple[NumaNode | None, Phrase]:
    """The node to run on and why: the first NPU's, else the one with most cores, then with most free memory."""
    nodes = [node for node in facts.nodes or () if usable_cores(facts, node)]
    if not nodes:
        return None, Phrase("the NUMA topology is unknown")
    if len(nodes) == 1:
        is_only = len(facts.nodes or ()) == 1
        return nodes[0], Phrase("the only node" if is_only else "the only node whose CPUs this process may use")
    npu = next((npu for npu in npus(facts) or () if npu.numa_node is not None), None)
    if npu is not None:
        own = next((node for node in facts.nodes or () if node.id == npu.numa_node), None)
        if own in nodes:
            return own, Phrase("the node of NPU {address}", {"address": npu.address})
        if own is not None:
            near = min(nodes, key=lambda node: (_distance(own, node), node.id))
            values = {"address": npu.address, "node": own.id}
            return near, Phrase("the nearest usable node to NPU {address} on node {node}", values)
    best = max(nodes, key=lambda node: (len(usable_cores(facts, node)), node.memory_free_bytes or 0, -node.id))
    free, values = best.memory_free_bytes, {"count": len(nodes), "cores": len(usable_cores(facts, best))}
    if free is None:
        return best, Phrase("the most of {count} nodes: {cores} cores", values)
    return best, Phrase("the most of {count} nodes: {cores} cores, {free} of memory free", {
        **values, "free": format_bytes(free)
    })  # fmt: skip


def cpus_for(facts: PlacementFacts, num_threads: int | None = None) -> Placement:
    """Where `num_threads` threads go; None asks for one on each physical core of the chosen node.

    More threads than that spill to the cores of the nearest nodes, and then to second threads of cores. The affinity
    mask binds always. A cgroup's quota bounds the number: a thread that is throttled holds up all that wait for it.
    Raises ResourceError, with what there is and what was wanted, if the host does not have that many.
    """
    usable = usable_cpus(facts)
    if not usable:
        raise ResourceError(
            "threads: no CPU is known to be usable; /sys/devices/system/cpu/online and /proc/self/status say none",
            "mount /proc and /sys",
        )
    node, reason = choose_node(facts)
    bound = quota_threads(facts)
    available = len(usable) if bound is None else min(bound, len(usable))
    if num_threads is None:
        own = tuple(core[0] for core in usable_cores(facts, node))
        if len(own) > available:
            quota: dict[str, object] = {"reason": reason, "quota": facts.cgroup.cpu_quota}
            cut = Phrase("{reason}; cut to the cgroup's quota of {quota:g} CPUs", quota)
            return _placement(own[:available], node, cut)
        return _placement(own, node, reason)
    if num_threads < 1:
        raise ResourceError(f"threads: {num_threads} asked for, at least 1 is needed", f"ask for 1 to {available}")
    if num_threads > available:
        raise _too_many(facts, num_threads, available, len(usable))
    return _placement(_in_order(facts, node)[:num_threads], node, reason)


def quota_threads(facts: PlacementFacts) -> int | None:
    """How many threads a cgroup's CPU quota feeds without throttling; None if there is no quota, or none is known."""
    quota = facts.cgroup.cpu_quota
    return max(1, int(quota)) if isinstance(quota, int | float) else None


def available_memory(facts: PlacementFacts) -> int | None:
    """What may be allocated now, by the kernel and by the cgroup; None if the kernel does not say."""
    available, left = facts.memory.available_bytes, facts.cgroup.memory_left_bytes
    return min(available, left) if available is not None and isinstance(left, int) else available


def _in_order(facts: PlacementFacts, node: NumaNode | None) -> tuple[int, ...]:
    """All usable CPUs, best first: a core of one's own comes before a near one, and both before a shared core."""
    far: dict[int, int] = {}
    if node is not None:
        far = {cpu: _distance(node, other) for other in facts.nodes or () for cpu in other.cpus or ()}
    ranked = [(rank, far.get(cpu, _FAR), cpu) for core in usable_cores(facts) for rank, cpu in enumerate(core)]
    return tuple(cpu for _, _, cpu in sorted(ranked))


def _distance(a: NumaNode, b: NumaNode) -> int:
    # Where no distance is known, one's own node is still nearer than any other.
    return (a.distances or {}).get(b.id, 10 if a.id == b.id else _FAR)


def _placement(cpus: tuple[int, ...], node: NumaNode | None, reason: Phrase) -> Placement:
    if node is None or set(cpus) <= set(node.cpus or ()):
        return Placement(cpus, node.id if node else None, reason)
    more = Phrase("more than the cores of node {node} ({reason})", {"node": node.id, "reason": reason})
    return Placement(cpus, None, more)


def _quota(facts: PlacementFacts) -> str:
    return f"the cgroup's quota of {facts.cgroup.cpu_quota:g} CPUs"


def _too_many(facts: PlacementFacts, wanted: int, available: int, num_usable: int) -> ResourceError:
    """Says what binds, since each bound is widened in another place."""
    cause, mend = f"the host has {num_usable} CPUs", ""
    if available < num_usable:
        cause, mend = f"{_quota(facts)} binds", ", or raise the quota (docker run --cpus)"
    elif facts.cpus.online is not None and num_usable < len(facts.cpus.online):
        cause = f"this process may use {num_usable} of {len(facts.cpus.online)} CPUs"
        mend = ", or widen its affinity (taskset, cpuset)"
    return ResourceError(f"threads: {wanted} asked for, {available} available: {cause}", f"ask for {available}{mend}")
