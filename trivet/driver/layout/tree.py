"""How a host is laid out: NUMA nodes, the PCI bridges below each, and on them NPUs, disks and network cards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trivet.driver.chips import chip_of, nvmes
from trivet.driver.facts import HostFacts
from trivet.driver.placement_facts import PciDevice

Kind = Literal["npu", "disk", "nic"]
# How two devices reach each other, in the words of `npu-smi info -t topo`, nearest first: below one PCI switch, through
# several, through the host bridge of their node, and between nodes.
Path = Literal["PIX", "PXB", "PHB", "SYS"]

_STORAGE, _NETWORK = 0x01, 0x02  # PCI Code and ID Assignment Specification


@dataclass(frozen=True)
class Device:
    address: str
    kind: Kind
    name: str  # "NPU 0", "nvme0", "eth0", or its address where it has none
    what: str  # "Ascend 910B", a disk's model, a network card's state
    node: int | None
    bridges: tuple[str, ...] | None  # above it, the root port first
    link: str | None  # "16 GT/s × 16"


@dataclass(frozen=True)
class Bridge:
    """A bridge with more than one thing below it; one with a single thing is left out of the drawing."""

    address: str
    below: tuple[Bridge | Device, ...]


@dataclass(frozen=True)
class Branch:
    """A NUMA node; its `node` is None for devices of which none is known."""

    node: int | None
    cpus: tuple[int, ...] | None
    memory_bytes: int | None
    distances: dict[int, int] | None
    below: tuple[Bridge | Device, ...]


def tree(facts: HostFacts) -> tuple[Branch, ...]:
    """A branch for each node in order of its id, and at the end one for devices whose node is not known."""
    found = devices(facts)
    branches = [
        Branch(
            node.id,
            node.cpus,
            node.memory_total_bytes,
            node.distances,
            _below([each for each in found if each.node == node.id], 0),
        )
        for node in facts.nodes or ()
    ]
    known = {branch.node for branch in branches}
    lost = [each for each in found if each.node not in known]
    return (*branches, Branch(None, None, None, None, _below(lost, 0))) if lost else tuple(branches)


def devices(facts: HostFacts) -> tuple[Device, ...]:
    """NPUs, disks' controllers and network cards on PCI, in order of their addresses. Of one node, all are there."""
    only = facts.nodes[0].id if facts.nodes is not None and len(facts.nodes) == 1 else None
    return tuple(
        Device(
            address=each.address,
            kind=kind,
            name=_names(facts, each, kind)[0],
            what=_names(facts, each, kind)[1],
            node=only if only is not None else each.numa_node,
            bridges=each.bridges,
            link=_link(each),
        )
        for each in facts.pci or ()
        if (kind := _kind(each)) is not None
    )


def path_between(a: Device, b: Device) -> Path | None:
    """None where it cannot be told: no bridges are known and neither are the nodes."""
    if a.bridges is not None and b.bridges is not None and a.bridges[:1] == b.bridges[:1] != ():
        common = next(
            (i for i, (x, y) in enumerate(zip(a.bridges, b.bridges, strict=False)) if x != y),
            min(len(a.bridges), len(b.bridges)),
        )
        # A switch is one bridge upwards, shared, and one downwards for each device.
        return "PIX" if max(len(a.bridges), len(b.bridges)) - common <= 1 else "PXB"
    if a.node is None or b.node is None:
        return None
    return "PHB" if a.node == b.node else "SYS"


def paths(facts: HostFacts) -> dict[str, dict[str, Path | None]]:
    """For each NPU by its address, how it reaches each disk and network card."""
    found = devices(facts)
    others = [each for each in found if each.kind != "npu"]
    return {
        npu.address: {each.address: path_between(npu, each) for each in others} for npu in found if npu.kind == "npu"
    }


def npu_number(facts: HostFacts, address: str) -> int | None:
    """The number that CANN counts an NPU by, as npu-smi says; None where it did not."""
    said = facts.npu_smi
    chip = next((each for each in (said.chips if said else None) or () if each.address == address), None)
    if said is None or chip is None:
        return None
    rows = [row for row in said.mappings or () if (row.npu_id, row.chip_id) == (chip.npu_id, chip.chip_id or 0)]
    return next((row.logic_id for row in rows if row.logic_id is not None), chip.device_id)


def _kind(device: PciDevice) -> Kind | None:
    if chip_of(device) is not None:
        return "npu"
    kinds: dict[int, Kind] = {_STORAGE: "disk", _NETWORK: "nic"}
    return kinds.get(device.class_code >> 16)


def _names(facts: HostFacts, device: PciDevice, kind: Kind) -> tuple[str, str]:
    """What a device is called, and what it is."""
    match kind:
        case "npu":
            number = npu_number(facts, device.address)
            return device.address if number is None else f"NPU {number}", chip_of(device) or "NPU"
        case "disk":
            disk = next((each for each in facts.nvme or () if each.address == device.address), None)
            if disk is not None:
                return disk.name, disk.model or "NVMe"
            return device.address, "NVMe" if device in (nvmes(facts) or ()) else "storage"
        case "nic":
            cards = [each for each in facts.network or () if each.address == device.address]
            if cards:
                return "+".join(
                    card.name for card in cards
                ), f"network, {', '.join(card.state or '?' for card in cards)}"
            return device.address, "network"


def _link(device: PciDevice) -> str | None:
    if device.link_gts is None or device.link_width is None:
        return None
    return f"{device.link_gts:g} GT/s × {device.link_width}"


def _below(found: Sequence[Device], depth: int) -> tuple[Bridge | Device, ...]:
    """What hangs `depth` bridges below the node, in order of its first address."""
    groups: dict[str, list[Device]] = {}
    for device in found:
        bridges = device.bridges or ()
        groups.setdefault(bridges[depth] if depth < len(bridges) else device.address, []).append(device)
    things: list[Bridge | Device] = []
    for address, group in groups.items():
        inner = (group[0],) if group[0].address == address else _below(group, depth + 1)
        things += inner if len(inner) == 1 else [Bridge(address, inner)]
    return tuple(things)
