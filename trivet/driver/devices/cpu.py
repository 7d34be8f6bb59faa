"""The CPU as a device: the cores that the topology implies, and the memory that is left."""

from __future__ import annotations

from trivet.driver.devices.device import Device
from trivet.driver.placement_facts import PlacementFacts
from trivet.driver.topology import available_memory, cpus_for


def open_cpu(facts: PlacementFacts, num_threads: int | None) -> Device:
    placement = cpus_for(facts, num_threads)
    return Device(
        kind="cpu",
        name=facts.cpus.model or facts.architecture or "cpu",
        memory_bytes=available_memory(facts),
        cpus=placement.cpus,
        numa_node=placement.node,
        reason=str(placement.reason),
    )
