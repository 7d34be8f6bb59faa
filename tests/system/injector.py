"""A library for LD_PRELOAD that makes calls of the C library fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def build_injector(folder: Path, source: str) -> Path:
    """The library of this C source, built in `folder`; skips the test where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the fault injector with")
    (folder / "inject.c").write_text(source)
    library = folder / "inject.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "inject.c"], check=True)
    return library
