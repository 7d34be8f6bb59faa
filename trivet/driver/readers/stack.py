"""Reads what is installed above the kernel, all of it from files."""

from __future__ import annotations

import re
from pathlib import Path

from trivet.driver.readers.cann import read_cann, read_nnal
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.environment import read_environment
from trivet.driver.readers.files import exists, is_live
from trivet.driver.readers.libraries import find_libraries
from trivet.driver.readers.mindie import read_mindie
from trivet.driver.readers.python import read_python
from trivet.driver.readers.rank_table import read_rank_table
from trivet.driver.readers.version_files import (
    read_driver_user,
    read_driver_version,
    read_firmware_version,
    read_install_record,
    read_present,
)
from trivet.driver.stack_facts import Stack


def read_stack(
    root: Path, captured: Captured, python: str | None, local_addresses: tuple[str, ...] | None = None
) -> Stack:
    install, environment = read_install_record(root), read_environment(root)
    canns, nnals = read_cann(root, captured, environment), read_nnal(root, environment)
    interpreter, user = read_python(root, captured, environment, python), read_driver_user(root)
    libraries, libstdcxx = captured.libraries, captured.libstdcxx
    if is_live(root):
        libraries, libstdcxx = find_libraries(root, environment, canns, nnals, interpreter)
    return Stack(
        install=install,
        driver=read_driver_version(root, install),
        firmware=read_firmware_version(root, install),
        cann=canns,
        nnal=nnals,
        python=interpreter,
        environment=environment,
        present=read_present(root),
        driver_user=user,
        has_accounts=True if user is not None else exists(root, "/etc/passwd") or None,
        libraries=libraries,
        libstdcxx=libstdcxx,
        preloads=_preloads(root, environment),
        mindie=read_mindie(root, environment),
        rank_table=read_rank_table(root, environment, local_addresses),
    )


def _preloads(root: Path, environment: dict[str, str] | None) -> dict[str, bool] | None:
    """Of each path in LD_PRELOAD, parted by blanks or colons, whether it is there. A bare name the loader looks for."""
    if environment is None:
        return None
    paths = re.split(r"[ :]+", environment.get("LD_PRELOAD", "").strip())
    return {path: exists(root, path) for path in paths if path.startswith("/")}
