"""Parses lspci, with or without its numbers, for where sysfs is not mounted and for what people paste."""

from __future__ import annotations

import re
from pathlib import Path

from trivet.driver.placement_facts import PciDevice
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.commands import ask
from trivet.driver.readers.sysfs_pci import pci_address

# `c1:00.0 Processing accelerators [1200]: Huawei Technologies Co., Ltd. Device [19e5:d802] (rev 20)`: -nn adds the
# brackets, and -D the domain.
_PLACE = r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_NUMBERED = re.compile(rf"{_PLACE} [^\[\n]+\[([0-9a-f]{{4}})\]: [^\n]*\[([0-9a-f]{{4}}):([0-9a-f]{{4}})\].*")
_NAMED = re.compile(rf"{_PLACE} Processing accelerators: Huawei Technologies Co\., Ltd\. Device ([0-9a-f]{{4}}).*")
_ACCELERATOR, _HUAWEI = 0x1200, 0x19E5


def read_lspci(root: Path, captured: Captured, deadline: float) -> tuple[PciDevice, ...] | None:
    (output,) = ask(root, captured, (("lspci", "-Dnn"),), deadline)
    return None if output is None or output.command.outcome != "answered" else parse_lspci(output.text)


def parse_lspci(text: str) -> tuple[PciDevice, ...] | None:
    """The devices that give their numbers, or are accelerators of Huawei's; None where no line is of a device."""
    devices = [_device(line.strip()) for line in text.splitlines() if len(line) < 500]
    return tuple(device for device in devices if device is not None) or None


def _device(line: str) -> PciDevice | None:
    numbered, named = _NUMBERED.fullmatch(line), _NAMED.fullmatch(line)
    if numbered is not None:
        place, kind, vendor, device = numbered[1], int(numbered[2], 16), int(numbered[3], 16), int(numbered[4], 16)
    elif named is not None:
        place, kind, vendor, device = named[1], _ACCELERATOR, _HUAWEI, int(named[2], 16)
    else:
        return None
    address = pci_address(place if place.count(":") == 2 else f"0000:{place}")
    if address is None:
        return None
    # Of the class lspci leaves out the interface, the last of its three bytes.
    return PciDevice(address, kind << 8, vendor, device, None, None, None, None, None, None)
