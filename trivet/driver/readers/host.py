"""Reads a whole host, live or captured, into one value."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from trivet.driver.chips import ASCEND_950, npus
from trivet.driver.facts import HostFacts
from trivet.driver.placement_facts import DeviceNode, PciDevice
from trivet.driver.readers.captured import Captured, read_captured
from trivet.driver.readers.clock import read_clock
from trivet.driver.readers.cluster import read_cluster
from trivet.driver.readers.commands import TIMEOUT_S
from trivet.driver.readers.device_tools import read_devices
from trivet.driver.readers.files import integer, is_live
from trivet.driver.readers.filesystem import read_filesystem
from trivet.driver.readers.folders import read_folders, read_plog
from trivet.driver.readers.hccn import read_npu_network
from trivet.driver.readers.interrupts import read_interrupts
from trivet.driver.readers.kernel_log import read_kernel_log
from trivet.driver.readers.lspci import read_lspci
from trivet.driver.readers.machine import (
    read_distribution,
    read_driver_releases,
    read_has_kernel_headers,
    read_is_virtual,
    read_kernel_parameters,
    read_libc,
    read_modules,
    read_product,
)
from trivet.driver.readers.npu_smi import read_npu_smi
from trivet.driver.readers.placement import read_placement_facts
from trivet.driver.readers.probes import probe_pinning, probe_reading
from trivet.driver.readers.process import (
    gone,
    has_irqbalance,
    read_listening_ports,
    read_local_addresses,
    read_process,
    read_programs,
)
from trivet.driver.readers.stack import read_stack
from trivet.driver.readers.stack_probe import probe_master, probe_stack
from trivet.driver.readers.sysfs_block import read_disks, read_nvme, read_nvme_settings
from trivet.driver.readers.sysfs_net import read_network
from trivet.driver.readers.sysfs_pci import read_iommu_groups


def read_facts(
    root: Path = Path("/"),
    paths: Iterable[str] = (),
    python: str | None = None,
    timeout_s: float = TIMEOUT_S,
    probe: bool = False,
) -> HostFacts:
    """The facts of the host whose files lie under `root`, and of the filesystems that hold `paths`.

    `paths` and `python`, the interpreter that serves, are absolute on that host; without one it is the one that runs
    this. The NPU's tools are given `timeout_s` together; where there are none, nobody waits. With `probe`, the live
    host is also tried: a file at each path is read, memory is locked, and where there is an NPU the serving interpreter
    runs its stack in children. Never raises: what cannot be read is None.
    """
    deadline = time.monotonic() + timeout_s
    captured = Captured() if is_live(root) else read_captured(root)
    asked, product = tuple(paths), read_product(root)
    facts = read_placement_facts(root, asked, captured)
    pci = facts.pci if facts.pci is not None else read_lspci(root, captured, deadline)
    programs, addresses = read_programs(root), read_local_addresses(root)
    npu_smi, stack = read_npu_smi(root, captured, deadline), read_stack(root, captured, python, addresses)
    is_tried = probe and is_live(root)
    has_npu = bool(facts.device_nodes) or bool(npus(replace(facts, pci=pci)))
    return HostFacts(
        **{**vars(facts), "pci": pci},
        distribution=read_distribution(root),
        libc=read_libc(root, captured),
        product=product,
        is_virtual=read_is_virtual(root, product),
        process=read_process(root),
        kernel_parameters=read_kernel_parameters(root),
        modules=read_modules(root),
        driver_releases=read_driver_releases(root),
        has_kernel_headers=read_has_kernel_headers(root, facts.kernel),
        iommu_groups=read_iommu_groups(root),
        interrupts=read_interrupts(root, pci),
        has_irqbalance=has_irqbalance(programs, facts.container),
        nvme=read_nvme(root),
        nvme_settings=read_nvme_settings(root),
        disks=read_disks(root),
        network=read_network(root),
        listening_ports=read_listening_ports(root),
        shared_memory=read_filesystem(root, "/dev/shm", captured),
        kernel_log=read_kernel_log(root),
        npu_smi=npu_smi,
        npu_network=read_npu_network(root, captured, _numbers(facts.device_nodes), _has_ub(pci), deadline),
        npu_devices=read_devices(root),
        stack=stack,
        local_addresses=addresses,
        clock=read_clock(root, captured),
        folders=read_folders(root, captured, stack.environment),
        plog=read_plog(root, stack.environment),
        cluster=read_cluster(root, programs or {}),
        gone_processes=gone(npu_smi.processes if npu_smi else None, programs, facts.container),
        reading=tuple(probe_reading(path, pci) for path in asked) if is_tried else None,
        pinning=probe_pinning() if is_tried else None,
        running=probe_stack(stack) if is_tried and has_npu else None,
        master=probe_master(stack.environment) if is_tried else None,
    )


def _numbers(device_nodes: tuple[DeviceNode, ...] | None) -> tuple[int, ...]:
    """N of every /dev/davinciN."""
    names = [node.path.removeprefix("/dev/davinci") for node in device_nodes or ()]
    return tuple(number for name in names if (number := integer(name)) is not None)


def _has_ub(pci: tuple[PciDevice, ...] | None) -> bool:
    return any((device.vendor, device.device) == ASCEND_950 for device in pci or ())
