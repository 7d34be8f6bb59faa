"""Where a package is made: a folder beside its destination that one writer holds, and that the next can continue.

Nothing half made in it opens as a package. What is whole leaves it by being renamed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_SUFFIX = ".partial"


def work_path(destination: Path) -> Path:
    return destination.with_name(destination.name + _SUFFIX)


@contextmanager
def work_folder(destination: Path, waiting: Callable[[Path], None]) -> Iterator[Path]:
    """The destination's work folder, held by this process alone; it stays when the block ends, unless removed there.

    While another holds it, `waiting` is told once. The lock is the kernel's and ends with its holder, so what a killed
    process left can be told from work in progress, also where another container's process ids mean nothing here.
    """
    path = work_path(destination)
    descriptor = _lock(path, waiting)
    try:
        yield path
    finally:
        os.close(descriptor)


def publish(work: Path, package: Path, destination: Path) -> None:
    """Rename `package`, a folder in `work`, to `destination`, whose present content goes; then remove `work`.

    At every moment all of one of the two is on disk, in place or in `work`.
    """
    for file in package.iterdir():
        sync(file)
    sync(package)
    replaced = work / "replaced"
    shutil.rmtree(replaced, ignore_errors=True)
    if destination.exists():
        destination.rename(replaced)
    package.rename(destination)
    sync(destination.parent)
    shutil.rmtree(work, ignore_errors=True)


def remove_stale(folder: Path, besides: Path) -> None:
    """Remove the work folders in `folder` that nobody holds, except that of the destination `besides`."""
    for path in folder.glob(f"*{_SUFFIX}"):
        if path == work_path(besides):
            continue
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # a file of that name, or gone already
            continue
        if _try_lock(descriptor):
            shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def sync(path: Path) -> None:
    """What was written to the file, or the names in the folder, are on disk when the call returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(path: Path, waiting: Callable[[Path], None]) -> int:
    told = False
    while True:
        path.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # its holder has just removed it
            continue
        try:
            if not _try_lock(descriptor):
                if not told:
                    waiting(path)
                told = True
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Its holder may have finished and removed it meanwhile: then this is a lock on nothing.
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
