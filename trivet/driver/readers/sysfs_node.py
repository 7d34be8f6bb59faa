"""Reads /sys/devices/system/node and the mode of transparent huge pages: memory, and how far it is from which CPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from trivet.driver.placement_facts import HugePages, NumaNode, PageMode
from trivet.driver.readers.files import integer, list_names, read_id_list, read_integer, read_text
from trivet.driver.readers.procfs import sizes

_ROOT = "sys/devices/system/node"


def read_nodes(root: Path) -> tuple[NumaNode, ...] | None:
    """The NUMA nodes in order of their ids; None where the kernel shows none (it shows one on a plain machine)."""
    names = list_names(root, _ROOT, r"node\d{1,5}")
    if not names:
        return None
    ids = tuple(int(name.removeprefix("node")) for name in names)
    return tuple(_node(root, node, ids) for node in ids)


def read_page_mode(root: Path) -> PageMode | None:
    """The bracketed word of `always [madvise] never`."""
    match = re.search(r"\[(\w+)\]", read_text(root, "sys/kernel/mm/transparent_hugepage/enabled") or "")
    return next((mode for mode in get_args(PageMode) if match and match[1] == mode), None)


def _node(root: Path, node: int, ids: tuple[int, ...]) -> NumaNode:
    directory = f"{_ROOT}/node{node}"
    memory = sizes(read_text(root, f"{directory}/meminfo") or "")
    return NumaNode(
        id=node,
        cpus=read_id_list(root, f"{directory}/cpulist"),
        memory_total_bytes=memory.get("MemTotal"),
        memory_free_bytes=memory.get("MemFree"),
        distances=_distances(read_text(root, f"{directory}/distance"), ids),
        huge_pages=_huge_pages(root, f"{directory}/hugepages"),
    )


def _distances(text: str | None, ids: tuple[int, ...]) -> dict[int, int] | None:
    """One number for each online node, in order of their ids."""
    words = [integer(word) for word in (text or "").split()]
    known = [word for word in words if word is not None]
    return dict(zip(ids, known, strict=True)) if len(ids) == len(words) == len(known) else None


def _huge_pages(root: Path, directory: str) -> tuple[HugePages, ...] | None:
    names = list_names(root, directory, r"hugepages-\d{1,12}kB")
    if names is None:
        return None
    pages = []
    for name in names:
        total = read_integer(root, f"{directory}/{name}/nr_hugepages")
        free = read_integer(root, f"{directory}/{name}/free_hugepages")
        if total is None or free is None:
            return None
        pages.append(HugePages(int(name[len("hugepages-") : -len("kB")]) << 10, total, free))
    return tuple(pages)
