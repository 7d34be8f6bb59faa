"""What only a system call can answer. On the live host it is asked; a captured tree keeps the answers in a file.

The file is `captured.json` at the root of the tree: owners and modes of device nodes, free bytes by mount point, and
the machine name, none of which survive as files in an archive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trivet.driver.facts import DeviceNode
from trivet.driver.readers.files import read_text

NAME = "captured.json"


@dataclass(frozen=True)
class Captured:
    architecture: str | None = None
    device_nodes: tuple[DeviceNode, ...] | None = None
    free_bytes: dict[str, int] = field(default_factory=dict)  # by mount point


def read_captured(root: Path) -> Captured:
    """The answers kept in a captured tree; nothing is known where the file is absent or malformed."""
    import msgspec  # a hundredth of a second, at every start, for what only a captured tree needs

    text = read_text(root, NAME)
    if text is None:
        return Captured()
    try:
        return msgspec.json.decode(text, type=Captured)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Captured()
