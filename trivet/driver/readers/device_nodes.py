"""Reads the device nodes of the Ascend driver: one for each NPU, and those that every process needs besides."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.driver.placement_facts import DeviceNode
from trivet.driver.readers.files import is_live, list_names

if TYPE_CHECKING:  # a start reads the live host
    from trivet.driver.readers.captured import Captured

# Source: the vllm-ascend installation guide, which passes them to a container beside /dev/davinciN.
CONTROL_NODES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


def read_device_nodes(root: Path, captured: Captured | None) -> tuple[DeviceNode, ...] | None:
    """Those of them that are here, NPUs in order of their number and then the control nodes."""
    if not is_live(root):
        return captured.device_nodes if captured else None
    numbered = list_names(root, "/dev", r"davinci\d{1,4}")
    if numbered is None:
        return None
    paths = (*(f"/dev/{name}" for name in numbered), *CONTROL_NODES)
    return tuple(_node(path) for path in paths if os.path.lexists(path))


def _node(path: str) -> DeviceNode:
    try:
        status = Path(path).stat()
    except OSError:
        return DeviceNode(path, None, None, None, None, None)
    # Asked, not opened: opening a davinci node claims the NPU.
    accessible = os.access(path, os.R_OK | os.W_OK)
    mode = status.st_mode
    return DeviceNode(path, stat.S_IMODE(mode), status.st_uid, status.st_gid, accessible, stat.S_ISCHR(mode))
