"""The layout of a host and the placement it implies, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trivet.base.errors import ResourceError
from trivet.base.units import format_bytes
from trivet.driver.facts import HostFacts
from trivet.driver.layout.placement import placements
from trivet.driver.layout.tree import Branch, Bridge, Device, devices, paths, tree
from trivet.driver.summary import ranges
from trivet.driver.topology import cpus_for


def text(facts: HostFacts) -> str:
    """Three sections: the tree, the nearest disks and cards of each NPU, and the placement. No trailing newline."""
    sections = [_tree(facts), _nearest(facts), _placement(facts)]
    return "\n\n".join("\n".join(lines) for each in sections if (lines := list(each)))


def heading(branch: Branch) -> str:
    """`node 0` with its CPUs and memory."""
    if branch.node is None:
        return "node not known"
    memory = "memory unknown" if branch.memory_bytes is None else format_bytes(branch.memory_bytes)
    cpus = "cpus unknown" if branch.cpus is None else f"cpus {ranges(branch.cpus) or 'none'}"
    return f"node {branch.node}  {cpus}, {memory}"


def label(device: Device) -> str:
    """Its address, and whatever is known of it: name, kind, link."""
    name = () if device.name == device.address else (device.name,)
    return f"{device.address}  {', '.join((*name, device.what, *filter(None, (device.link,))))}"


def _tree(facts: HostFacts) -> Iterator[str]:
    yield "Layout"
    branches = tree(facts)
    if facts.nodes is None:
        yield "  the NUMA nodes are unknown"
    for branch in branches:
        yield f"  {heading(branch)}{_distances(branch)}"
        yield from _below(branch.below, "    ")
    if facts.pci is None:
        yield "  the PCI bus could not be read"
    elif not devices(facts):
        yield f"  no NPU, disk or network card among {len(facts.pci)} PCI devices"


def _distances(branch: Branch) -> str:
    others = {node: far for node, far in (branch.distances or {}).items() if node != branch.node}
    if not others:
        return ""
    return "; " + ", ".join(f"node {node} {far / 10:.1f}×" for node, far in others.items()) + " as far"


def _below(things: Sequence[Bridge | Device], indent: str) -> Iterator[str]:
    for thing in things:
        if isinstance(thing, Bridge):
            yield f"{indent}{thing.address}  bridge"
            yield from _below(thing.below, indent + "  ")
        else:
            yield f"{indent}{label(thing)}"


def _nearest(facts: HostFacts) -> Iterator[str]:
    names = {each.address: each.name for each in devices(facts)}
    found = {npu: others for npu, others in paths(facts).items() if others}
    if not found:
        return
    yield "Paths to disks and network: PIX below one PCI switch, PXB several, PHB within a node, SYS between nodes"
    for npu, others in found.items():
        ways = ("PIX", "PXB", "PHB", "SYS", None)
        near = {way: [names[other] for other, path in others.items() if path == way] for way in ways}
        told = "; ".join(f"{way or 'unknown'} {', '.join(each)}" for way, each in near.items() if each)
        yield f"  {'' if names[npu] == npu else f'{names[npu]} '}{npu}  {told}"


def _placement(facts: HostFacts) -> Iterator[str]:
    yield "Placement"
    placed = placements(facts)
    if not placed:
        try:
            place = cpus_for(facts)
        except ResourceError as error:
            yield f"  {error.message}"
            return
        where = "no node chosen" if place.node is None else f"memory of node {place.node}"
        yield f"  threads  cpus {ranges(place.cpus)}, {where}: {place.reason}"
    for each in placed:
        memory = f"memory of node {each.node}" if each.node is not None else "memory of any node"
        where = f"cpus {ranges(each.cpus) or 'none'}, interrupts on {ranges(each.interrupt_cpus) or 'none'}, {memory}"
        yield f"  NPU {each.number} at {each.address}  {where}: {each.reason}"
    if any(not each.is_number_known for each in placed):
        yield "  NPUs are counted in order of their addresses: npu-smi did not say which number each has"
