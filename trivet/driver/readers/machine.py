"""Reads what the machine and its system are: the distribution, the firmware's name for it, and the driver's modules."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trivet.driver.facts import KernelModule
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.files import exists, is_live, list_names, read_text, read_word

# Names of the modules of the Ascend driver. Source: obj-m in the Makefiles of hicann/driver.
_MODULES = r"(?:drv_|asdrv_|ascend|npu_|ts_agent|davinci)\w*"
# Settings of the kernel's command line that change where memory, interrupts and time go.
_PARAMETERS = re.compile(
    r"(?:(?:intel_|amd_)?iommu|iommu\.\w+|isolcpus|nohz_full|rcu_nocbs|irqaffinity|transparent_hugepage|cma|numa"
    r"|(?:default_)?hugepages(?:z)?|numa_balancing|pci|pcie_aspm|mitigations|swiotlb|nvme(?:_core)?\.\w+)(?:=.*)?"
)
_HYPERVISORS = ("KVM", "QEMU", "VMware", "VirtualBox", "Virtual Machine", "Bochs", "OpenStack", "HVM domU", "Xen")


def read_distribution(root: Path) -> str | None:
    text = read_text(root, "etc/os-release") or read_text(root, "usr/lib/os-release") or ""
    match = re.search(r"^PRETTY_NAME=[\"']?([^\"'\n]+?)[\"']?\s*$", text, re.MULTILINE)
    return match[1] if match else None


def read_libc(root: Path, captured: Captured) -> str | None:
    if not is_live(root):
        return captured.libc
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):  # of another C library, such as musl
        return None


def read_product(root: Path) -> str | None:
    """The maker's name for the machine; its serial number, which lies beside it, is left alone."""
    words = [read_word(root, f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
    return " ".join(word for word in words if word is not None) or None


def read_is_virtual(root: Path, product: str | None) -> bool | None:
    """An x86 CPU says whether a hypervisor runs it. An Arm one does not, so that only a name can tell, and only yes."""
    if product is not None and any(name in product for name in _HYPERVISORS):
        return True
    match = re.search(r"^flags\s*:(.*)$", read_text(root, "proc/cpuinfo") or "", re.MULTILINE)
    return "hypervisor" in match[1].split() if match else None


def read_kernel_parameters(root: Path) -> tuple[str, ...] | None:
    text = read_text(root, "proc/cmdline")
    return None if text is None else tuple(word for word in text.split() if _PARAMETERS.fullmatch(word))


def read_modules(root: Path) -> tuple[KernelModule, ...] | None:
    text = read_text(root, "proc/modules")
    if text is None:
        return None
    # Name, size, uses, users, state, address: proc(5).
    rows = [line.split() for line in text.splitlines()]
    return tuple(
        KernelModule(row[0], row[4] if len(row) > 4 else None, read_word(root, f"sys/module/{row[0]}/version"))
        for row in rows
        if row and re.fullmatch(_MODULES, row[0], re.ASCII)
    )


def read_driver_releases(root: Path) -> tuple[str, ...] | None:
    """The kernels whose folder holds modules of the driver, which loads on no other."""
    releases = list_names(root, "lib/modules", r"[\w.+~-]+")
    if releases is None:
        return None
    return tuple(
        release
        for release in releases
        if any(
            list_names(root, f"lib/modules/{release}/{folder}", rf"{_MODULES}\.ko(?:\.\w+)?")
            for folder in ("updates", "updates/dkms", "extra", "weak-updates", "kernel/drivers/davinci")
        )
    )


def read_has_kernel_headers(root: Path, kernel: str | None) -> bool | None:
    if kernel is None or not exists(root, f"lib/modules/{kernel}"):
        return None
    return exists(root, f"lib/modules/{kernel}/build")
