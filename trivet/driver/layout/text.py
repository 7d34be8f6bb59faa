"""The layout of a host and the placement it implies, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from trivet.base.errors import ResourceError
from trivet.base.settings import Language
from trivet.base.units import format_bytes
from trivet.driver.facts import HostFacts
from trivet.driver.layout.placement import placements
from trivet.driver.layout.tree import Branch, Bridge, Device, devices, paths, tree
from trivet.driver.phrases import say
from trivet.driver.summary import ranges
from trivet.driver.topology import cpus_for

Say = Callable[..., str]


def text(facts: HostFacts, language: Language = "en") -> str:
    """Three sections: the tree, the nearest disks and cards of each NPU, and the placement. No trailing newline."""
    speak = partial(say, language)
    sections = [_tree(facts, speak), _nearest(facts, speak), _placement(facts, speak)]
    return "\n\n".join("\n".join(lines) for each in sections if (lines := list(each)))


def heading(branch: Branch, speak: Say) -> str:
    """`node 0` with its CPUs and memory."""
    if branch.node is None:
        return speak("node not known")
    memory = speak("memory unknown") if branch.memory_bytes is None else format_bytes(branch.memory_bytes)
    values = {"node": branch.node, "memory": memory, "cpus": ranges(branch.cpus) or "–"}
    return speak(
        "node {node}  cpus unknown, {memory}" if branch.cpus is None else "node {node}  cpus {cpus}, {memory}", values
    )


def label(device: Device, speak: Say) -> str:
    """Its address, and whatever is known of it: name, kind, link."""
    name = () if device.name == device.address else (device.name,)
    kinds = {word: speak(word) for word in ("network", "storage")}
    word, comma, state = device.what.partition(", ")
    what = f"{kinds[word]}{comma}{state}" if word in kinds else device.what
    return f"{device.address}  {', '.join((*name, what, *filter(None, (device.link,))))}"


def distances(branch: Branch, speak: Say) -> str:
    """`node 1 1.2×, node 2 2.0×`; empty where there is one node."""
    others = {node: far for node, far in (branch.distances or {}).items() if node != branch.node}
    return ", ".join(speak("node {node} {far:.1f}×", {"node": node, "far": far / 10}) for node, far in others.items())


def _tree(facts: HostFacts, speak: Say) -> Iterator[str]:
    yield speak("Layout")
    if facts.nodes is None:
        yield "  " + speak("the NUMA nodes are unknown")
    for branch in tree(facts):
        others = distances(branch, speak)
        yield f"  {heading(branch, speak)}" + (speak("; {others} as far", {"others": others}) if others else "")
        yield from _below(branch.below, "    ", speak)
    if facts.pci is None:
        yield "  " + speak("the PCI bus could not be read")
    elif not devices(facts):
        yield "  " + speak("no NPU, disk or network card among {count} PCI devices", {"count": len(facts.pci)})


def _below(things: Sequence[Bridge | Device], indent: str, speak: Say) -> Iterator[str]:
    for thing in things:
        if isinstance(thing, Bridge):
            yield f"{indent}{thing.address}  {speak('bridge')}"
            yield from _below(thing.below, indent + "  ", speak)
        else:
            yield f"{indent}{label(thing, speak)}"


def _nearest(facts: HostFacts, speak: Say) -> Iterator[str]:
    names = {each.address: each.name for each in devices(facts)}
    found = {npu: others for npu, others in paths(facts).items() if others}
    if not found:
        return
    yield speak(
        "Paths to disks and network: PIX below one PCI switch, PXB several, PHB within a node, SYS between nodes"
    )
    for npu, others in found.items():
        ways = ("PIX", "PXB", "PHB", "SYS", None)
        near = {way: [names[other] for other, path in others.items() if path == way] for way in ways}
        told = "; ".join(f"{way or speak('unknown')} {', '.join(each)}" for way, each in near.items() if each)
        yield f"  {'' if names[npu] == npu else f'{names[npu]} '}{npu}  {told}"


def _placement(facts: HostFacts, speak: Say) -> Iterator[str]:
    yield speak("Placement")
    placed = placements(facts)
    if not placed:
        try:
            place = cpus_for(facts)
        except ResourceError as error:
            yield f"  {error.message}"
            return
        values = {"cpus": ranges(place.cpus), "where": _memory(place.node, speak), "reason": place.reason}
        yield "  " + speak("threads  cpus {cpus}, {where}: {reason}", values)
    for each in placed:
        values = {
            "number": each.number, "address": each.address, "cpus": ranges(each.cpus) or "–", "reason": each.reason,
            "interrupts": ranges(each.interrupt_cpus) or "–", "where": _memory(each.node, speak),
        }  # fmt: skip
        yield "  " + speak(
            "NPU {number} at {address}  cpus {cpus}, interrupts on {interrupts}, {where}: {reason}", values
        )
    if any(not each.is_number_known for each in placed):
        yield "  " + speak("NPUs are counted in order of their addresses: npu-smi did not say which number each has")


def _memory(node: int | None, speak: Say) -> str:
    return speak("memory of any node") if node is None else speak("memory of node {node}", {"node": node})
