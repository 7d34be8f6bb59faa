"""What only a system call can answer. On the live host it is asked; a captured tree keeps the answers in a file.

The file is `captured.json` at the root of the tree: owners and modes of device nodes, free bytes by mount point, the
machine's name and what became of the tools that were run, none of which survive as files in an archive. What the tools
printed is in files of its own: see `commands.output_path`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trivet.driver.facts import Clock, WorkingFolder
from trivet.driver.npu_facts import CommandOutcome
from trivet.driver.placement_facts import DeviceNode
from trivet.driver.readers.files import read_text
from trivet.driver.stack_facts import Library

NAME = "captured.json"


@dataclass(frozen=True)
class CapturedRun:
    """What became of a tool that was run; without one, what a captured file holds is what it answered."""

    outcome: CommandOutcome
    exit_code: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class CapturedMode:
    mode: int  # permission bits
    uid: int


@dataclass(frozen=True)
class Captured:
    architecture: str | None = None
    device_nodes: tuple[DeviceNode, ...] | None = None
    free_bytes: dict[str, int] = field(default_factory=dict)  # by mount point
    total_bytes: dict[str, int] = field(default_factory=dict)
    libc: str | None = None
    python: str | None = None  # the interpreter that serves, a path in the tree
    environment: dict[str, str] | None = None
    commands: dict[str, CapturedRun] = field(default_factory=dict)  # by their line, "npu-smi info -m"
    modes: dict[str, CapturedMode] = field(default_factory=dict)  # of CANN's directories, by path
    libraries: tuple[Library, ...] | None = None  # no bundle carries their files
    libstdcxx: str | None = None
    folders: tuple[WorkingFolder, ...] | None = None
    clock: Clock | None = None


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
