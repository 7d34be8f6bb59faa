"""Where the compilers are. It answers what is missing with a sentence and never looks outside PATH and this Python.

Huawei's compiler comes from the wheels in `ascend/requirements.txt`; LLVM and MLIR 19 from the distribution
(Debian 12: `apt-get install --no-install-recommends llvm-19 mlir-19-tools clang-19`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from trivet.base.errors import TrivetError

_DOUBLES = Path(__file__).parent / "doubles"
_WHEELS = ("triton-ascend", "ascendnpu-ir")
_HOST_TOOLS = ("mlir-translate-19", "clang-19")


class LoweringError(TrivetError):
    """A compiler refused a kernel; the message names kernel, dtype and tile."""


def missing_compiler() -> str | None:
    """Why kernels cannot be compiled for an Ascend here, or None."""
    for wheel in _WHEELS:
        try:
            importlib.metadata.version(wheel)
        except importlib.metadata.PackageNotFoundError:
            return f"{wheel} is not installed (pip install -r ascend/requirements.txt)"
    return None


def missing_host_tools() -> str | None:
    """Why lowered kernels cannot be run on this machine, or None."""
    for tool in _HOST_TOOLS:
        if shutil.which(tool) is None:
            return f"{tool} is not on PATH (apt-get install --no-install-recommends llvm-19 mlir-19-tools clang-19)"
    return missing_compiler()


def versions() -> dict[str, str]:
    """What compiled: for the record of a proof."""
    found = {wheel: importlib.metadata.version(wheel) for wheel in _WHEELS}
    for tool in _HOST_TOOLS:
        if shutil.which(tool) is not None:
            text = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
            found[tool] = next(line for line in text.splitlines() if "version" in line).split("version")[1].strip()
    return found


def bishengir(tool: str) -> Path:
    """A program of the ascendnpu-ir wheel."""
    spec = importlib.util.find_spec("ascendnpuir")
    assert spec is not None and spec.submodule_search_locations, "missing_compiler() was not asked"
    return Path(spec.submodule_search_locations[0]) / "bin" / tool


def run(command: Sequence[str | Path], extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a compiler with the doubles of what is not public on PATH; its output is text, its status is not judged."""
    environment = {**os.environ, **(extra or {}), "PATH": f"{_DOUBLES}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True, check=False)
