"""Reads whether the folders that CANN and what runs on it write to can be written, and how much room they have.

Where they are is what the CANN documents say of their variables; without those they lie in the home folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from trivet.driver.facts import FolderPurpose, LogErrors, WorkingFolder
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.files import is_live, list_names, read_text
from trivet.driver.readers.record import keep

_MAX_LOGS = 3  # processes that ran last
_MAX_LOG_BYTES = 1 << 20
_MAX_LINE = 400


def read_folders(
    root: Path, captured: Captured, environment: dict[str, str] | None
) -> tuple[WorkingFolder, ...] | None:
    """Only the kernel tells whether a folder can be written, so a captured tree keeps it."""
    if not is_live(root):
        return captured.folders
    if environment is None:
        return None
    home, work = environment.get("HOME"), environment.get("ASCEND_WORK_PATH")
    cache = environment.get("ASCEND_CACHE_PATH") or work or (f"{home}/atc_data" if home else None)
    found = [
        _folder("logs", log) if (log := log_folder(environment)) is not None else None,
        _folder("caches", cache) if cache is not None else None,
        _folder("temporary files", environment.get("TMPDIR") or "/tmp"),
    ]
    return tuple(folder for folder in found if folder is not None)


def log_folder(environment: dict[str, str] | None) -> str | None:
    """ASCEND_PROCESS_LOG_PATH comes before ASCEND_WORK_PATH, and both before the home folder."""
    known = environment or {}
    home, work = known.get("HOME"), known.get("ASCEND_WORK_PATH")
    below = f"{work}/log" if work else f"{home}/ascend/log" if home else None
    return known.get("ASCEND_PROCESS_LOG_PATH") or below


def read_plog(root: Path, environment: dict[str, str] | None) -> LogErrors | None:
    """The first error of each of the processes that logged last; None where no folder of logs could be read."""
    base = log_folder(environment)
    folder = f"{base}/debug/plog" if base is not None and base.startswith("/") else None
    if folder is None:
        return None
    names = list_names(root, folder, r"plog-\d{1,10}_\d{8,20}\.log")
    if names is None and is_live(root) and not os.path.lexists(folder):
        keep(f"{folder}/.empty".lstrip("/"), "")  # a bundle of this host says so too
        names = ()
    if names is None:
        return None
    newest = sorted(names, key=lambda name: name.rpartition("_")[2])[-_MAX_LOGS:]
    texts = (read_text(root, f"{folder}/{name}", _MAX_LOG_BYTES) for name in newest)
    firsts = (next(iter(errors_of(text)), None) for text in texts if text is not None)
    return LogErrors(folder, tuple(line[:_MAX_LINE] for line in firsts if line is not None))


def errors_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("[ERROR]")]


def _folder(purpose: FolderPurpose, path: str) -> WorkingFolder:
    place = Path(path)
    there = next((each for each in (place, *place.parents) if os.path.lexists(each)), place)
    try:
        room = os.statvfs(there)
        return WorkingFolder(purpose, path, os.access(there, os.W_OK | os.X_OK), room.f_bavail * room.f_frsize)
    except (OSError, ValueError):
        return WorkingFolder(purpose, path, None, None)
