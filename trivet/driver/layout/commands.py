"""The commands that put processes, memory and interrupts where the placement says. They are printed, never run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from trivet.base.settings import Language
from trivet.driver.facts import HostFacts
from trivet.driver.layout.placement import INTERRUPTS, NpuPlacement, placements
from trivet.driver.phrases import say
from trivet.driver.summary import ranges
from trivet.driver.topology import cpus_for

Say = Callable[..., str]


def commands(facts: HostFacts, language: Language = "en") -> str:
    """A shell script with its reasons as comments. Raises ResourceError if no CPU is known to be usable."""
    speak, placed = partial(say, language), placements(facts)
    if not placed:
        return "\n".join(_cpu(facts, speak))
    return "\n".join([*_host(facts, placed, speak), *(line for each in placed for line in _npu(each, speak))])


def _cpu(facts: HostFacts, speak: Say) -> Iterator[str]:
    place = cpus_for(facts)
    why = speak("no NPU on PCI; threads on {reason}", {"reason": place.reason})
    yield f"# {why}; {speak('trivet pins its own threads so: this is for other programs')}"
    yield f"{_numactl(place.cpus, place.node)} COMMAND"
    yield speak("taskset -acp {cpus} PID  # one that runs already", {"cpus": ranges(place.cpus)})


def _host(facts: HostFacts, placed: tuple[NpuPlacement, ...], speak: Say) -> Iterator[str]:
    if facts.container is not None and facts.container.kind != "none":
        yield "# " + speak("this is a container: what concerns interrupts has to be done on its host")
    if any(not each.is_number_known for each in placed):
        yield "# " + speak("NPUs are counted in order of their addresses: npu-smi did not say which number each has")
    if facts.has_irqbalance is not False:
        yield speak("systemctl stop irqbalance  # else it moves the interrupts back")
    spans = [f"npu{each.number}:{ranges(each.cpus)}" for each in placed]
    if any("," in span for span in spans):
        yield "# " + speak("CPU_AFFINITY_CONF takes one range for each NPU, and these are several: leave it to numactl")
        return
    # The first number is the mode. Source: torch_npu documentation, CPU_AFFINITY_CONF.
    yield speak("export CPU_AFFINITY_CONF=1,{spans}  # where torch_npu puts its threads", {"spans": ",".join(spans)})


def _npu(placed: NpuPlacement, speak: Say) -> Iterator[str]:
    yield ""
    values = {"number": placed.number, "address": placed.address, "reason": placed.reason}
    yield "# " + speak("NPU {number} at {address}: {reason}", values)
    if placed.interrupts is None:
        yield f"# {speak('its interrupts could not be read')}: grep -E '{'|'.join(INTERRUPTS)}' /proc/interrupts"
    for each in placed.interrupts or ():
        cpu = placed.interrupt_cpus[INTERRUPTS.index(each.name)] if placed.interrupt_cpus else None
        if cpu is not None:
            yield f"echo {cpu} > /proc/irq/{each.number}/smp_affinity_list  # {each.name}, {speak('as root')}"
    yield f"ASCEND_RT_VISIBLE_DEVICES={placed.number} {_numactl(placed.cpus, placed.node)} COMMAND"
    yield speak("taskset -acp {cpus} PID  # one that runs already", {"cpus": ranges(placed.cpus)})


def _numactl(cpus: tuple[int, ...], node: int | None) -> str:
    # Preferred, not bound: a process that needs more than the node has must not be killed for it.
    return f"numactl --physcpubind={ranges(cpus)}" + (f" --preferred={node}" if node is not None else " --localalloc")
