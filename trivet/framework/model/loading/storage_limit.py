"""What the storage below a folder can deliver at best, as `trivet bench storage` measured it, kept for later loads."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trivet.framework.model.json_file import write_json

_FILE = "storage.json"


@dataclass(frozen=True)
class StorageLimit:
    bytes_per_s: float
    engine: str  # that reached it
    date: str  # when, ISO 8601


def remember(limit: StorageLimit, folder: Path, cache_dir: Path) -> None:
    """Keep the limit of the storage that `folder` lies on, in place of an earlier one."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    write_json(cache_dir / _FILE, {**_kept(cache_dir), _key(folder): asdict(limit)})


def recall(path: Path, cache_dir: Path) -> StorageLimit | None:
    """The limit of the storage that an existing path lies on; None where none was measured."""
    try:
        return StorageLimit(**_kept(cache_dir)[_key(path)])
    except (KeyError, TypeError):  # of another version: measured again when somebody asks
        return None


def _key(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def _kept(cache_dir: Path) -> dict[str, Any]:
    try:
        kept = json.loads((cache_dir / _FILE).read_text())
    except (OSError, ValueError):  # a cache: absent or damaged is as if nothing had been measured
        return {}
    return kept if isinstance(kept, dict) else {}
