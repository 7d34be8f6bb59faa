"""Reads whether the process is in a container, and what says so.

The marks are those that systemd-detect-virt and the runtimes themselves leave: files in the root, the name of the
group of process 1, and the paths that the root filesystem is stacked from.
"""

from __future__ import annotations

from pathlib import Path

from trivet.driver.placement_facts import Container, ContainerKind
from trivet.driver.readers.files import exists, read_text, read_word
from trivet.driver.readers.mounts import read_mounts

# The most telling first: a pod is also a containerd or docker container.
_FILES: tuple[tuple[ContainerKind, str], ...] = (
    ("kubernetes", "/var/run/secrets/kubernetes.io"),
    ("podman", "/run/.containerenv"),
    ("docker", "/.dockerenv"),
)
_WORDS: tuple[tuple[ContainerKind, str], ...] = (
    ("kubernetes", "kubepods"),
    ("kubernetes", "/kubelet/"),
    ("podman", "libpod"),
    ("docker", "docker"),
    ("containerd", "containerd"),
    ("lxc", "/lxc"),
)


def read_container(root: Path) -> Container | None:
    """The kind of container and its evidence; kind "none" where no mark is; None where the marks cannot be read."""
    for kind, path in _FILES:
        if exists(root, path):
            return Container(kind, path)
    # Written by systemd-nspawn, and by any runtime that boots systemd inside (systemd.io/CONTAINER_INTERFACE).
    manager = read_word(root, "/run/systemd/container")
    if manager is not None:
        return Container(next((kind for kind, word in _WORDS if word.strip("/") in manager), "other"), manager)
    group, base = read_text(root, "/proc/1/cgroup"), _base(root)
    for text, path in ((group, "/proc/1/cgroup"), (base, "the root mount in /proc/self/mountinfo")):
        for kind, word in _WORDS:
            if word in (text or ""):
                return Container(kind, f"{word.strip('/')!r} in {path}")
    if group is None or base is None:
        return None
    return Container("none", "no mark in /, /run, /proc/1/cgroup or the root mount")


def _base(root: Path) -> str | None:
    """How "/" is mounted: an overlay's layers lie in a directory of the runtime that stacked them."""
    roots = [mount for mount in read_mounts(root) or () if mount.point == "/"]
    return f"{roots[-1].root} {','.join(roots[-1].super_options)}" if roots else None
