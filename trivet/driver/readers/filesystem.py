"""Reads what holds a path: the mount, its type and options, and how much room is left."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from trivet.driver.facts import Filesystem
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.files import is_live
from trivet.driver.readers.mounts import Mount, read_mounts


def read_filesystem(root: Path, path: str, captured: Captured) -> Filesystem:
    """The filesystem of `path`, an absolute path on the host, which need not exist yet."""
    mount = _mount_of(read_mounts(root) or (), _resolved(path) if is_live(root) else PurePosixPath(path))
    return Filesystem(
        path=path,
        mount_point=mount.point if mount else None,
        type=mount.type if mount else None,
        options=mount.options if mount else None,
        free_bytes=_free_bytes(path) if is_live(root) else captured.free_bytes.get(mount.point if mount else ""),
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


def _free_bytes(path: str) -> int | None:
    """Of the nearest directory above that exists, since that is where the path would be made."""
    place = Path(path)
    for candidate in (place, *place.parents):
        try:
            room = os.statvfs(candidate)
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return None
        return room.f_bavail * room.f_frsize
    return None
