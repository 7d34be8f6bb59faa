"""Reads /proc/interrupts: how often NPUs, disks and network cards have interrupted, and which CPUs served them."""

from __future__ import annotations

from pathlib import Path

from trivet.driver.facts import Interrupt
from trivet.driver.placement_facts import PciDevice
from trivet.driver.readers.files import integer, read_id_list, read_text

# A line for each of thousands of interrupts, in it a number for each of hundreds of CPUs.
_MAX_BYTES = 64 << 20
_NUM_BUSIEST = 8
# PCI classes (PCI Code and ID Assignment Specification): storage, network, processing accelerators.
_CLASSES = (0x01, 0x02, 0x12)
# The NPU's own two that cost time; it has some 250 others. Source: vllm-ascend, docs on CPU binding.
_ALWAYS = ("sq_send_trigger_irq", "cq_update_irq")


def read_interrupts(root: Path, pci: tuple[PciDevice, ...] | None) -> tuple[Interrupt, ...] | None:
    """Those that have happened, and of an NPU the two that matter in any case, in order of their numbers."""
    text = read_text(root, "proc/interrupts", _MAX_BYTES)
    if text is None or pci is None:
        return None
    owners = {
        number: device.address
        for device in pci
        if device.class_code >> 16 in _CLASSES
        for number in device.interrupts or ()
    }
    lines = text.splitlines()
    cpus = [integer(word.removeprefix("CPU")) for word in lines[0].split()] if lines else []
    if not cpus or None in cpus:
        return None
    rows = (_interrupt(root, line, owners, [cpu for cpu in cpus if cpu is not None]) for line in lines[1:])
    return tuple(sorted((row for row in rows if row is not None), key=lambda row: row.number))


def _interrupt(root: Path, line: str, owners: dict[int, str], cpus: list[int]) -> Interrupt | None:
    label, colon, rest = line.partition(":")
    number = integer(label.strip())
    if not colon or number not in owners:
        return None
    words = rest.split()
    counts = [integer(word) for word in words[: len(cpus)]]
    if len(words) <= len(cpus) or None in counts:
        return None
    known = [count for count in counts if count is not None]
    name = words[-1]
    if not any(known) and name not in _ALWAYS:
        return None
    busiest = sorted((-count, cpu) for count, cpu in zip(known, cpus, strict=True) if count)
    return Interrupt(
        number=number,
        name=name,
        address=owners[number],
        count=sum(known),
        served_by=tuple(cpu for _, cpu in busiest[:_NUM_BUSIEST]),
        allowed_cpus=read_id_list(root, f"proc/irq/{number}/smp_affinity_list") or None,
        effective_cpus=read_id_list(root, f"proc/irq/{number}/effective_affinity_list") or None,
    )
