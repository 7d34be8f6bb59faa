"""Reads /sys/block and /sys/class/nvme: disks, how each is queued and polled, and how its controller is reached."""

from __future__ import annotations

import re
from pathlib import Path

from trivet.driver.facts import BlockDevice, NvmeController, NvmeSettings
from trivet.driver.readers.files import list_names, read_integer, read_word
from trivet.driver.readers.sysfs_pci import pci_address

_SECTOR = 512  # the unit of "size", whatever the disk's own block is (Linux, Documentation/ABI/stable/sysfs-block)
_NVME = "sys/class/nvme"


def read_nvme(root: Path) -> tuple[NvmeController, ...] | None:
    """Empty where the kernel has a class for other devices and none for these: no driver of NVMe is loaded."""
    names = list_names(root, _NVME, r"nvme\d+")
    if names is None:
        return () if list_names(root, "sys/class", r"\w+") else None
    return tuple(_controller(root, name) for name in names)


def read_nvme_settings(root: Path) -> NvmeSettings | None:
    values = [read_integer(root, f"sys/module/nvme/parameters/{name}") for name in ("poll_queues", "write_queues")]
    return None if values == [None, None] else NvmeSettings(*values)


def read_disks(root: Path) -> tuple[BlockDevice, ...] | None:
    """Those that hold something: without loops, memory disks and drives that are empty."""
    names = list_names(root, "sys/block", r"[\w!.-]+")
    if names is None:
        return None
    paths = {
        name: list_names(root, f"{_NVME}/{name}", r"nvme\d+(?:c\d+)?n\d+") or ()
        for name in list_names(root, _NVME, r"nvme\d+") or ()
    }
    disks = [_disk(root, name, paths) for name in names if not re.match(r"loop|ram|zram|nbd|fd|sr", name)]
    return tuple(disk for disk in disks if disk.size_bytes != 0)


def _controller(root: Path, name: str) -> NvmeController:
    directory = f"{_NVME}/{name}"
    transport = read_word(root, f"{directory}/transport")
    # Over a fabric the address is the other machine's, and the node that of the card in between.
    address = pci_address(read_word(root, f"{directory}/address")) if transport == "pcie" else None
    return NvmeController(
        name=name,
        transport=transport,
        state=read_word(root, f"{directory}/state"),
        model=read_word(root, f"{directory}/model"),
        address=address,
        numa_node=read_integer(root, f"{directory}/numa_node"),
        num_queues=read_integer(root, f"{directory}/queue_count"),
    )


def _disk(root: Path, name: str, paths: dict[str, tuple[str, ...]]) -> BlockDevice:
    directory = f"sys/block/{name}"
    sectors, read_ahead = (
        read_integer(root, f"{directory}/size"),
        read_integer(root, f"{directory}/queue/read_ahead_kb"),
    )
    polled, rotational = (read_integer(root, f"{directory}/queue/{each}") for each in ("io_poll", "rotational"))
    return BlockDevice(
        name=name,
        size_bytes=None if sectors is None else sectors * _SECTOR,
        scheduler=_chosen(read_word(root, f"{directory}/queue/scheduler")),
        is_polled=None if polled is None else polled == 1,
        queue_depth=read_integer(root, f"{directory}/queue/nr_requests"),
        read_ahead_bytes=None if read_ahead is None else read_ahead << 10,
        logical_block_bytes=read_integer(root, f"{directory}/queue/logical_block_size"),
        is_rotational=None if rotational is None else rotational == 1,
        numa_node=read_integer(root, f"{directory}/device/numa_node"),
        controllers=tuple(each for each, spaces in paths.items() if any(_same(name, space) for space in spaces)),
        below=list_names(root, f"{directory}/slaves", r"[\w!.-]+") or (),
    )


def _same(disk: str, space: str) -> bool:
    """A namespace that several controllers lead to, nvme0n1, is nvme0c1n1 at the second of them."""
    return re.sub(r"c\d+", "", space) == disk


def _chosen(text: str | None) -> str | None:
    """The bracketed word; a disk with one choice only says it bare."""
    match = re.search(r"\[([\w-]+)\]", text or "")
    if match:
        return match[1]
    return text if text is not None and re.fullmatch(r"[\w-]+", text) else None
