"""Reads what is installed above the kernel, all of it from files."""

from __future__ import annotations

from pathlib import Path

from trivet.driver.readers.cann import read_cann, read_nnal
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.environment import read_environment
from trivet.driver.readers.python import read_python
from trivet.driver.readers.version_files import (
    read_driver_user,
    read_driver_version,
    read_firmware_version,
    read_install_record,
    read_present,
)
from trivet.driver.stack_facts import Stack


def read_stack(root: Path, captured: Captured, python: str | None) -> Stack:
    install, environment = read_install_record(root), read_environment(root)
    return Stack(
        install=install,
        driver=read_driver_version(root, install),
        firmware=read_firmware_version(root, install),
        cann=read_cann(root, captured, environment),
        nnal=read_nnal(root, environment),
        python=read_python(root, captured, environment, python),
        environment=environment,
        present=read_present(root),
        driver_user=read_driver_user(root),
    )
