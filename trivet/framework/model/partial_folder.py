"""A folder that appears whole or not at all: written beside its place, then renamed into it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trivet.base.errors import ResourceError

_MARK = ".partial-"


@contextmanager
def partial_folder(destination: Path) -> Iterator[Path]:
    """A new folder to write in, renamed to `destination` at the end; removed on any error, an interrupt included.

    Its writer holds a lock on it, so that what a killed process left behind can be told from work in progress,
    also where another container's process ids mean nothing here.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(destination.parent)
    partial = destination.with_name(f"{destination.name}{_MARK}{os.getpid()}")
    try:
        partial.mkdir()
    except FileExistsError:
        raise ResourceError(f"{partial} is being written", "wait until that conversion has ended") from None
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield partial
        os.fsync(descriptor)
        partial.rename(destination)
        _sync(destination.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def remove_stale(folder: Path) -> None:
    """Remove the partial folders in `folder` whose writers are gone."""
    for partial in folder.glob(f"*{_MARK}*"):
        try:
            descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # a file of that name, or gone already
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(partial, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
