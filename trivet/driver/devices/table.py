"""The devices there are, by name."""

from __future__ import annotations

from collections.abc import Callable

from trivet.base.errors import ResourceError, TrivetError
from trivet.driver.chips import chip_of, npus
from trivet.driver.devices.cpu import open_cpu
from trivet.driver.devices.device import Device
from trivet.driver.placement_facts import PlacementFacts

DEVICES: dict[str, Callable[[PlacementFacts, int | None], Device]] = {"cpu": open_cpu}


def open_device(name: str, facts: PlacementFacts, num_threads: int | None = None) -> Device:
    """The device called `name`, placed by the facts; `num_threads` None means as many as the placement suggests.

    Raises TrivetError for a name that is not known, ResourceError for an NPU or threads that are not there.
    """
    if name in DEVICES:
        return DEVICES[name](facts, num_threads)
    known = ", ".join(DEVICES)
    if name == "npu":
        raise ResourceError(f"device npu: {_absence(facts)}", f"--device {known}, or see trivet doctor --device npu")
    raise TrivetError(f"device {name}: not known", f"choose one of: {known}")


def _absence(facts: PlacementFacts) -> str:
    found = npus(facts)
    if found is None:
        return "the PCI bus could not be read, so whether there is an NPU is unknown"
    if found:
        return f"{len(found)} × {chip_of(found[0])} here, and no plan of this version runs on one"
    count = len(facts.pci or ())
    return f"none here: looked through {count} PCI devices for an Ascend of vendor 19e5, and for /dev/davinci*"
