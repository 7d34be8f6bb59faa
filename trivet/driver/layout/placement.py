"""Which CPUs and which memory each NPU's process should have, and which CPUs its interrupts. Facts in, plan out."""

from __future__ import annotations

from dataclasses import dataclass

from trivet.driver.chips import npus
from trivet.driver.facts import HostFacts, Interrupt
from trivet.driver.layout.tree import npu_number
from trivet.driver.phrases import Phrase
from trivet.driver.placement_facts import NumaNode, PciDevice
from trivet.driver.topology import Core, usable_cores

# The two interrupts that an NPU raises for every piece of work, each given a core of its own; then the process needs
# three threads of its own. Source: vllm-ascend, CPU binding.
INTERRUPTS = ("sq_send_trigger_irq", "cq_update_irq")
_MIN_CORES = 5


@dataclass(frozen=True)
class NpuPlacement:
    address: str
    number: int  # that CANN counts it by
    is_number_known: bool  # else NPUs were counted in order of their addresses
    node: int | None  # whose memory it should have; None where no single node is right
    cpus: tuple[int, ...]  # for its process
    interrupt_cpus: tuple[int, ...]  # one for each of INTERRUPTS
    interrupts: tuple[Interrupt, ...] | None  # those two, as far as they are there; None where none could be read
    reason: Phrase


def placements(facts: HostFacts) -> tuple[NpuPlacement, ...]:
    """One for each NPU on PCI, in order of their addresses; NPUs with the same home share its cores evenly."""
    found = npus(facts) or ()
    homes = [_home(facts, npu) for npu in found]
    placed = []
    for index, (npu, (node, cores, reason)) in enumerate(zip(found, homes, strict=True)):
        sharing = [i for i, (_, other, _) in enumerate(homes) if other == cores]
        share = _share(cores, sharing.index(index), len(sharing))
        own, reserved = _reserve(share)
        number = npu_number(facts, npu.address)
        placed.append(
            NpuPlacement(
                address=npu.address,
                number=index if number is None else number,
                is_number_known=number is not None,
                node=node.id if node is not None else None,
                cpus=own,
                interrupt_cpus=reserved,
                interrupts=_interrupts(facts, npu),
                reason=reason if len(sharing) == 1 else _shared(reason, len(sharing)),
            )
        )
    return tuple(placed)


def _shared(reason: Phrase, count: int) -> Phrase:
    return Phrase("{reason}, shared by {count} NPUs", {"reason": reason, "count": count})


def _home(facts: HostFacts, npu: PciDevice) -> tuple[NumaNode | None, tuple[Core, ...], Phrase]:
    """The node an NPU belongs to, the usable cores there, and why."""
    nodes = facts.nodes or ()
    usable = [node for node in nodes if usable_cores(facts, node)]
    if len(nodes) == 1 and usable:
        return nodes[0], usable_cores(facts, nodes[0]), Phrase("the only node")
    own = next((node for node in nodes if node.id == npu.numa_node), None)
    if own is not None and usable:
        near = min(usable, key=lambda node: ((own.distances or {}).get(node.id, 255 * (node.id != own.id)), node.id))
        reason = Phrase(
            "its node {node}" if near == own else "the nearest usable node to its own, {node}", {"node": own.id}
        )
        return near, usable_cores(facts, near), reason
    near_cpus = set(npu.near_cpus or ())
    cores = tuple(core for core in usable_cores(facts) if near_cpus & set(core))
    if cores and len(cores) < len(usable_cores(facts)):
        return None, cores, Phrase("the CPUs that its bus calls near")
    return None, usable_cores(facts), Phrase("its node is not known, so any CPU")


def _share(cores: tuple[Core, ...], index: int, count: int) -> tuple[Core, ...]:
    """The part of the NPU at `index` of `count`; all, where there are fewer cores than NPUs."""
    if len(cores) < count:
        return cores
    return cores[index * len(cores) // count : (index + 1) * len(cores) // count]


def _reserve(cores: tuple[Core, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """CPUs for the process, and for its interrupts: cores of their own where enough are left."""
    first = tuple(core[0] for core in cores)
    if len(cores) < _MIN_CORES:
        return _cpus(cores), (first * len(INTERRUPTS))[: len(INTERRUPTS)]
    return _cpus(cores[len(INTERRUPTS) :]), first[: len(INTERRUPTS)]


def _cpus(cores: tuple[Core, ...]) -> tuple[int, ...]:
    return tuple(sorted(cpu for core in cores for cpu in core))


def _interrupts(facts: HostFacts, npu: PciDevice) -> tuple[Interrupt, ...] | None:
    if facts.interrupts is None:
        return None
    return tuple(each for each in facts.interrupts if each.address == npu.address and each.name in INTERRUPTS)
