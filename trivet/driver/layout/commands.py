"""The commands that put processes, memory and interrupts where the placement says. They are printed, never run."""

from __future__ import annotations

from collections.abc import Iterator

from trivet.driver.facts import HostFacts
from trivet.driver.layout.placement import INTERRUPTS, NpuPlacement, placements
from trivet.driver.summary import ranges
from trivet.driver.topology import cpus_for


def commands(facts: HostFacts) -> str:
    """A shell script with its reasons as comments. Raises ResourceError if no CPU is known to be usable."""
    placed = placements(facts)
    parts = [*_host(facts, placed), *(line for each in placed for line in _npu(each))] if placed else list(_cpu(facts))
    return "\n".join(parts)


def _cpu(facts: HostFacts) -> Iterator[str]:
    place = cpus_for(facts)
    yield f"# no NPU on PCI; threads on {place.reason}. trivet pins its own threads so: this is for other programs"
    yield f"{_numactl(place.cpus, place.node)} COMMAND"
    yield f"taskset -acp {ranges(place.cpus)} PID  # one that runs already"


def _host(facts: HostFacts, placed: tuple[NpuPlacement, ...]) -> Iterator[str]:
    if facts.container is not None and facts.container.kind != "none":
        yield "# this is a container: what concerns interrupts has to be done on its host"
    if any(not each.is_number_known for each in placed):
        yield "# npu-smi did not say which NPU has which number: they are counted in order of their addresses"
    if facts.has_irqbalance is not False:
        yield "systemctl stop irqbalance  # else it moves the interrupts back"
    spans = [f"npu{each.number}:{ranges(each.cpus)}" for each in placed]
    if any("," in span for span in spans):
        yield "# CPU_AFFINITY_CONF takes one range for each NPU, and these are several: leave it to numactl"
        return
    # The first number is the mode. Source: torch_npu documentation, CPU_AFFINITY_CONF.
    yield f"export CPU_AFFINITY_CONF=1,{','.join(spans)}  # where torch_npu puts its threads"


def _npu(placed: NpuPlacement) -> Iterator[str]:
    yield ""
    yield f"# NPU {placed.number} at {placed.address}: {placed.reason}"
    if placed.interrupts is None:
        yield f"# its interrupts could not be read: grep -E '{'|'.join(INTERRUPTS)}' /proc/interrupts"
    for each in placed.interrupts or ():
        cpu = placed.interrupt_cpus[INTERRUPTS.index(each.name)] if placed.interrupt_cpus else None
        if cpu is not None:
            yield f"echo {cpu} > /proc/irq/{each.number}/smp_affinity_list  # {each.name}, as root"
    yield f"ASCEND_RT_VISIBLE_DEVICES={placed.number} {_numactl(placed.cpus, placed.node)} COMMAND"
    yield f"taskset -acp {ranges(placed.cpus)} PID  # one that runs already"


def _numactl(cpus: tuple[int, ...], node: int | None) -> str:
    # Preferred, not bound: a process that needs more than the node has must not be killed for it.
    return f"numactl --physcpubind={ranges(cpus)}" + (f" --preferred={node}" if node is not None else " --localalloc")
