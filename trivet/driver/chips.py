"""Which PCI device is an NPU, and which. Data, with its sources.

Huawei's vendor id is also on network cards, disks and the management controller, so the vendor alone says nothing.
"""

from __future__ import annotations

from trivet.driver.placement_facts import PciDevice, PlacementFacts

HUAWEI = 0x19E5
# Vendors that sell the same chips under their own id. Source: the PCI tables of the open Ascend driver (CANN, GitCode).
REBRANDED = (0x20C6, 0x203F, 0x20E9)
# PCI class "processing accelerators" (PCI Code and ID Assignment Specification).
_ACCELERATOR = 0x12
_NVME = 0x010802

# Source: the PCI tables of the open Ascend driver; d100, d500 and d801 also in ascend-deployer and in lspci output.
CHIPS: dict[int, str] = {
    0xD100: "Ascend 310",
    0xD105: "Ascend 310B",
    0xD500: "Ascend 310P",
    0xD501: "Ascend 310P",
    0xD801: "Ascend 910",
    0xD802: "Ascend 910B",
    0xD803: "Ascend 910_93 (A3)",
    0xD804: "Ascend 910B, two chips",
    0xD805: "Ascend virtual function",
    0xD806: "Ascend 950",
    0xD807: "Ascend Cloud V5",
    0xD808: "Ascend 350",
}

ASCEND_950 = (HUAWEI, 0xD806)


def chip_of(device: PciDevice) -> str | None:
    """The name of the NPU; None if the device is none. An accelerator of Huawei's that is not listed is one too."""
    if device.vendor == HUAWEI and device.class_code >> 16 == _ACCELERATOR:
        return CHIPS.get(device.device, f"unlisted Ascend {device.device:04x}")
    if device.vendor in (HUAWEI, *REBRANDED):
        return CHIPS.get(device.device)
    return None


def npus(facts: PlacementFacts) -> tuple[PciDevice, ...] | None:
    """The NPUs on PCI in order of their addresses; None if the bus could not be read."""
    return None if facts.pci is None else tuple(device for device in facts.pci if chip_of(device) is not None)


def nvmes(facts: PlacementFacts) -> tuple[PciDevice, ...] | None:
    return None if facts.pci is None else tuple(device for device in facts.pci if device.class_code == _NVME)
