"""Reads /sys/bus/pci/devices: ids, place and link of every PCI device. What an id means is `driver.chips`' to say."""

from __future__ import annotations

import re
from pathlib import Path

from trivet.driver.facts import PciDevice
from trivet.driver.readers.files import list_names, locate, read_integer, read_word

_ROOT = "sys/bus/pci/devices"
_IDS = ("class", "vendor", "device")
_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
# 255 lanes is what sysfs shows for a link that does not answer; 32 is the widest there is (PCI Express base spec).
_MAX_WIDTH = 32


def read_pci(root: Path) -> tuple[PciDevice, ...] | None:
    """Every device in order of its address; None where the bus cannot be listed or a device does not tell its ids."""
    addresses = list_names(root, _ROOT, _ADDRESS)
    if addresses is None:
        return None
    devices = [_device(root, address) for address in sorted(addresses)]
    known = [device for device in devices if device is not None]
    return tuple(known) if len(known) == len(devices) else None


def _device(root: Path, address: str) -> PciDevice | None:
    directory = f"{_ROOT}/{address}"
    class_code, vendor, device = (read_integer(root, f"{directory}/{name}", 16) for name in _IDS)
    if class_code is None or vendor is None or device is None:
        return None
    return PciDevice(
        address=address.lower(),
        class_code=class_code,
        vendor=vendor,
        device=device,
        numa_node=read_integer(root, f"{directory}/numa_node"),  # the kernel writes -1 when it does not know
        kernel_driver=_kernel_driver(root, directory),
        link_gts=_speed(read_word(root, f"{directory}/current_link_speed")),
        max_link_gts=_speed(read_word(root, f"{directory}/max_link_speed")),
        link_width=_width(read_integer(root, f"{directory}/current_link_width")),
        max_link_width=_width(read_integer(root, f"{directory}/max_link_width")),
    )


def _kernel_driver(root: Path, directory: str) -> str | None:
    place = locate(root, directory)  # not of the link: a captured tree keeps the link, not what it points to
    try:
        return (place / "driver").readlink().name if place is not None else None
    except (OSError, ValueError):
        return None


def _speed(text: str | None) -> float | None:
    match = re.fullmatch(r"(\d{1,3}(?:\.\d)?) GT/s(?: PCIe)?", text or "", re.ASCII)
    return float(match[1]) if match else None


def _width(lanes: int | None) -> int | None:
    return lanes if lanes is not None and 1 <= lanes <= _MAX_WIDTH else None
