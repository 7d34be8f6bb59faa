"""Reads what holds a path: the mount, its type and options, the disk below it, and how much room is left."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trivet.driver.placement_facts import Filesystem
from trivet.driver.readers.files import is_live, list_names, read_word
from trivet.driver.readers.mounts import Mount, read_mounts

if TYPE_CHECKING:  # a start reads the live host
    from trivet.driver.readers.captured import Captured

# Their bytes come from another machine. Source: Linux, Documentation/filesystems, and the file systems' own manuals.
_NETWORK = frozenset((
    *("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "afs", "9p", "glusterfs", "fuse.glusterfs"),
    *("fuse.ceph", "fuse.sshfs", "fuse.s3fs", "fuse.juicefs", "fuse.ossfs", "fuse.obsfs", "fuse.goofys", "pvfs2"),
))  # fmt: skip
# Their bytes are on a block device of this machine, or in its memory. What is neither is not known to be either.
_LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "vfat", "squashfs", "erofs", "tmpfs", "ramfs"))


def read_filesystem(root: Path, path: str, captured: Captured | None = None) -> Filesystem:
    """The filesystem of `path`, an absolute path on the host, which need not exist yet."""
    mount = _mount_of(read_mounts(root) or (), _resolved(path) if is_live(root) else PurePosixPath(path))
    kept = mount.point if mount else ""
    free, total = _room(path) if is_live(root) else _captured_room(kept, captured)
    return Filesystem(
        path=path,
        mount_point=mount.point if mount else None,
        type=mount.type if mount else None,
        options=mount.options if mount else None,
        free_bytes=free,
        source=mount.source if mount else None,
        disk=_disk(root, mount.device) if mount else None,
        is_network=_is_network(mount.type) if mount else None,
        total_bytes=total,
    )


def _mount_of(mounts: tuple[Mount, ...], path: PurePosixPath) -> Mount | None:
    """The longest mount point above the path; of several at one point the last made hides the others."""
    above = [mount for mount in mounts if path.is_relative_to(mount.point)]
    return max(reversed(above), key=lambda mount: len(PurePosixPath(mount.point).parts), default=None)


def _resolved(path: str) -> PurePosixPath:
    try:
        return PurePosixPath(os.path.realpath(path))
    except (OSError, ValueError):
        return PurePosixPath(path)


def _is_network(type: str) -> bool | None:
    return True if type in _NETWORK else False if type in _LOCAL else None


def _disk(root: Path, number: str) -> str | None:
    """The disk with this device number, or with a partition of this number."""
    disks = list_names(root, "sys/block", r"[\w!.-]+") or ()
    for disk in disks:
        partitions = list_names(root, f"sys/block/{disk}", rf"{re.escape(disk)}p?\d+") or ()
        if any(
            read_word(root, f"sys/block/{place}/dev") == number
            for place in (disk, *(f"{disk}/{p}" for p in partitions))
        ):
            return disk
    return None


def _captured_room(point: str, captured: Captured | None) -> tuple[int | None, int | None]:
    return (None, None) if captured is None else (captured.free_bytes.get(point), captured.total_bytes.get(point))


def _room(path: str) -> tuple[int | None, int | None]:
    """Free and total, of the nearest directory above that exists, since that is where the path would be made."""
    place = Path(path)
    for candidate in (place, *place.parents):
        try:
            room = os.statvfs(candidate)
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return None, None
        return room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    return None, None
