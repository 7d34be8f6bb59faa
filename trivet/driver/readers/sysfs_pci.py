"""Reads /sys/bus/pci/devices: ids, place and link of every PCI device. What an id means is `driver.chips`' to say."""

from __future__ import annotations

import re
from pathlib import Path

from trivet.driver.placement_facts import PciDevice
from trivet.driver.readers.files import integer, list_names, locate, read_id_list, read_integer, read_word

_ROOT = "sys/bus/pci/devices"
_IDS = ("class", "vendor", "device")
ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
# 255 lanes is what sysfs shows for a link that does not answer; 32 is the widest there is (PCI Express base spec).
_MAX_WIDTH = 32


def read_pci(root: Path) -> tuple[PciDevice, ...] | None:
    """Every device in order of its address; None where the bus cannot be listed or a device does not tell its ids."""
    addresses = list_names(root, _ROOT, ADDRESS)
    if addresses is None:
        return None
    devices = [_device(root, address) for address in sorted(addresses)]
    known = [device for device in devices if device is not None]
    return tuple(known) if len(known) == len(devices) else None


def pci_address(text: str | None) -> str | None:
    """As `PciDevice.address` has it, or None where the text is none."""
    return text.lower() if text is not None and re.fullmatch(ADDRESS, text) else None


def read_iommu_groups(root: Path) -> int | None:
    """How many groups the IOMMU makes: none where it is off or there is none."""
    groups = list_names(root, "sys/kernel/iommu_groups", r"\d+")
    return None if groups is None else len(groups)


def _device(root: Path, address: str) -> PciDevice | None:
    directory = f"{_ROOT}/{address}"
    class_code, vendor, device = (read_integer(root, f"{directory}/{name}", 16) for name in _IDS)
    if class_code is None or vendor is None or device is None:
        return None
    group = integer(_link(root, f"{directory}/iommu_group"))
    return PciDevice(
        address=address.lower(),
        class_code=class_code,
        vendor=vendor,
        device=device,
        numa_node=read_integer(root, f"{directory}/numa_node"),  # the kernel writes -1 when it does not know
        kernel_driver=_link(root, f"{directory}/driver"),
        link_gts=_speed(read_word(root, f"{directory}/current_link_speed")),
        max_link_gts=_speed(read_word(root, f"{directory}/max_link_speed")),
        link_width=_width(read_integer(root, f"{directory}/current_link_width")),
        max_link_width=_width(read_integer(root, f"{directory}/max_link_width")),
        near_cpus=read_id_list(root, f"{directory}/local_cpulist") or None,
        bridges=_bridges(root, address),
        interrupts=_interrupts(root, directory),
        iommu_group=group,
        iommu_mode=read_word(root, f"sys/kernel/iommu_groups/{group}/type") if group is not None else None,
    )


def _link(root: Path, path: str) -> str | None:
    """The last name of what a link points to. Its own folder is located: a captured tree may keep the link alone."""
    folder, _, name = path.rpartition("/")
    place = locate(root, folder)
    try:
        return (place / name).readlink().name if place is not None else None
    except (OSError, ValueError):
        return None


def _bridges(root: Path, address: str) -> tuple[str, ...] | None:
    """The bridges on the way to it: the folder in the device tree that the bus links to is named after them."""
    place = locate(root, _ROOT)
    try:
        parts = (place / address).readlink().parts if place is not None else ()
    except (OSError, ValueError):
        return None
    return tuple(known for part in parts[:-1] if (known := pci_address(part)) is not None) if parts else None


def _interrupts(root: Path, directory: str) -> tuple[int, ...] | None:
    names = list_names(root, f"{directory}/msi_irqs", r"\d{1,9}")
    return None if names is None else tuple(int(name) for name in names)


def _speed(text: str | None) -> float | None:
    match = re.fullmatch(r"(\d{1,3}(?:\.\d)?) GT/s(?: PCIe)?", text or "", re.ASCII)
    return float(match[1]) if match else None


def _width(lanes: int | None) -> int | None:
    return lanes if lanes is not None and 1 <= lanes <= _MAX_WIDTH else None
