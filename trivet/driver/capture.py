"""Takes the part of a host's tree that its readers ask for, so that reading what was taken gives the same facts.

Links stay links, relative ones; of a file as much is taken as was read. Of what is not this stack's business only the
part that became a fact is taken, and nothing is taken that was not asked for.
"""

from __future__ import annotations

import json
import posixpath
import re
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from trivet.driver.facts import HostFacts
from trivet.driver.readers.captured import NAME, Captured, CapturedMode, CapturedRun
from trivet.driver.readers.cluster import CHECKPOINT, CONTAINERD, DOCKER, PLUGIN_LOG, plugin_errors
from trivet.driver.readers.files import is_live, locate, read_head
from trivet.driver.readers.folders import errors_of
from trivet.driver.readers.host import read_facts
from trivet.driver.readers.kernel_log import CAPTURED as KERNEL_LOG
from trivet.driver.readers.mindie import PORTS
from trivet.driver.readers.process import PROGRAMS
from trivet.driver.readers.record import recording

_MAX_LINKS = 40  # on the way to one file, as the kernel counts them (path_resolution(7))


@dataclass
class Tree:
    """Paths are written from the host's own "/", without the slash."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)  # to a relative target
    folders: set[str] = field(default_factory=set)


def capture(root: Path, paths: Sequence[str], python: str | None, timeout_s: float) -> Tree:
    """All that reading the host under `root` and the filesystems that hold `paths` asks for. Runs the NPU's tools."""
    with recording() as record:
        facts = read_facts(root, paths, python=python, timeout_s=timeout_s)
    tree = Tree()
    for path, num_bytes in record.asked.items():
        if locate(root, path) is not None:
            _take(root, tree, path, num_bytes)
    for path in tree.files:
        part = next((part for pattern, part in _PARTS if re.fullmatch(pattern, path)), None)
        if part is not None:
            tree.files[path] = part(tree.files[path].decode(errors="replace"), facts).encode()
    tree.files |= {path: text.encode(errors="replace") for path, text in record.kept.items()}
    if is_live(root):
        tree.files |= _answers(facts)
    return tree


def _environment(text: str, facts: HostFacts) -> str:
    known = facts.stack.environment if facts.stack else None
    return "\0".join(f"{name}={value}" for name, value in (known or {}).items())


def _interrupts(text: str, facts: HostFacts) -> str:
    known = {str(each.number) for each in facts.interrupts or ()}
    head, *lines = text.splitlines(keepends=True) or [""]
    return head + "".join(line for line in lines if line.partition(":")[0].strip() in known)


def _kubelet(text: str, facts: HostFacts) -> str:
    counts = (facts.cluster.kubelet_devices if facts.cluster else None) or {}
    return json.dumps({"Data": {"RegisteredDevices": {name: [""] * count for name, count in counts.items()}}})


def _docker(text: str, facts: HostFacts) -> str:
    return json.dumps({"runtimes": {name: {} for name in (facts.cluster.runtimes if facts.cluster else None) or ()}})


def _containerd(text: str, facts: HostFacts) -> str:
    names = (facts.cluster.runtimes if facts.cluster else None) or ()
    return "".join(f"[plugins.cri.containerd.runtimes.{json.dumps(name)}]\n" for name in names)


def _mindie(text: str, facts: HostFacts) -> str:
    found = facts.stack.mindie if facts.stack else None
    if found is None or found.config_fault is not None:
        return ""
    return json.dumps({"ServerConfig": dict(zip(PORTS, found.ports, strict=False))})


def _lines(chosen: Callable[[str], list[str]]) -> Callable[[str, HostFacts], str]:
    return lambda text, facts: "".join(f"{line}\n" for line in chosen(text))


# Files that tell more than was asked, and what of each is kept.
_PARTS: tuple[tuple[str, Callable[[str, HostFacts], str]], ...] = (
    (r"proc/\d+/environ", _environment),
    (r"proc/self/environ", _environment),
    (r"proc/cmdline", lambda text, facts: " ".join(facts.kernel_parameters or ())),
    (r"proc/\d+/comm", lambda text, facts: text if text.strip() in PROGRAMS else ""),
    (r"proc/\d+/cmdline", lambda text, facts: "\0".join(re.findall(r"--static_resource_list=[^\0]*", text))),
    (CHECKPOINT.lstrip("/"), _kubelet),
    (DOCKER.lstrip("/"), _docker),
    (CONTAINERD.lstrip("/"), _containerd),
    (r".*/conf/config\.json", _mindie),
    (r".*\.dist-info/METADATA", _lines(lambda text: re.findall(r"^Requires-Dist: .*", text, re.MULTILINE))),
    (r".*\.dist-info/RECORD", _lines(lambda text: [line.partition(",")[0] for line in text.splitlines()])),
    (PLUGIN_LOG.lstrip("/"), _lines(plugin_errors)),
    (r".*/plog-\d+_\d+\.log", _lines(lambda text: errors_of(text)[:1])),
    (r"proc/interrupts", _interrupts),
    (r"etc/passwd", lambda text, facts: "".join(re.findall(r"^HwHiAiUser:.*\n?", text, re.MULTILINE))),
)


def _answers(facts: HostFacts) -> dict[str, bytes]:
    """What no file of the live host says, as a captured tree keeps it."""
    import msgspec

    places = [each for each in (*facts.filesystems, facts.shared_memory) if each and each.mount_point is not None]
    asked = (
        *(facts.npu_smi.commands if facts.npu_smi else ()),
        *(facts.npu_network.commands if facts.npu_network else ()),
    )
    stack = facts.stack
    captured = Captured(
        architecture=facts.architecture,
        device_nodes=facts.device_nodes,
        free_bytes={str(each.mount_point): each.free_bytes for each in places if each.free_bytes is not None},
        total_bytes={str(each.mount_point): each.total_bytes for each in places if each.total_bytes is not None},
        libc=facts.libc,
        python=stack.python.executable if stack and stack.python else None,
        commands={each.line: CapturedRun(each.outcome, each.exit_code, each.seconds) for each in asked},
        modes={
            each.root: CapturedMode(each.mode, each.uid)
            for each in (stack.cann if stack else ())
            if each.mode is not None and each.uid is not None
        },
        libraries=stack.libraries if stack else None,
        libstdcxx=stack.libstdcxx if stack else None,
        folders=facts.folders,
        clock=facts.clock,
    )
    files = {NAME: msgspec.json.format(msgspec.json.encode(captured))}
    if facts.kernel_log is not None:
        files[KERNEL_LOG] = "".join(f"{line}\n" for line in facts.kernel_log.lines).encode(errors="replace")
    return files


def _take(root: Path, tree: Tree, path: str, num_bytes: int) -> None:
    """Walks to `path` as the kernel does, and takes every link on the way and what is at its end."""
    left, here, num_links = list(reversed(PurePosixPath(path).parts)), list[str](), 0
    while left:
        part = left.pop()
        if part in ("/", ".."):
            here = here[:-1] if part == ".." else []
            continue
        here.append(part)
        target = _target(root / "/".join(here))
        if target is None:
            continue
        num_links += 1
        if num_links > _MAX_LINKS:
            return
        place = "/".join(here)
        here.pop()
        tree.links[place] = _relative(target, here)
        left += reversed(PurePosixPath(target).parts)
    _take_end(root, tree, "/".join(here), num_bytes)


def _take_end(root: Path, tree: Tree, place: str, num_bytes: int) -> None:
    try:
        mode = (root / place).lstat().st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISDIR(mode):
        tree.folders.add(place)
        if place.startswith("sys/"):
            # There a link says something by where it leads: the driver of a device, the bridges above it.
            _take_links(root, tree, place)
        return
    # What is no plain file, or may not be read, is there all the same: that may be all that was asked.
    if num_bytes == 0 or not stat.S_ISREG(mode):
        tree.files.setdefault(place, b"")
        return
    content = read_head(root, place, num_bytes)
    if content is not None and len(content) >= len(tree.files.get(place, b"")):
        tree.files[place] = content


def _take_links(root: Path, tree: Tree, folder: str) -> None:
    with suppress(OSError):
        for entry in (root / folder).iterdir():
            if entry.is_symlink():
                tree.links[f"{folder}/{entry.name}"] = _relative(str(entry.readlink()), folder.split("/"))


def _target(place: Path) -> str | None:
    try:
        return str(place.readlink())
    except (OSError, ValueError):
        return None


def _relative(target: str, folder: list[str]) -> str:
    """A link of the live host may begin at its "/", which in a captured tree is another place."""
    return posixpath.relpath(target, f"/{'/'.join(folder)}") if target.startswith("/") else target
