"""Reads what the installers of the HDK wrote down: where, which versions, and which others each says it works with.

The way there: /etc/ascend_install.info names the folder, `driver/version.info` in it the versions, and its
`compatible_version_fw` the firmware that fits. npu-smi goes the same way. Source: `dcmi_inner_info_get.c` of the open
Ascend driver (hicann/driver).
"""

from __future__ import annotations

import re
from pathlib import Path

from trivet.driver.readers.files import exists, integer, read_text
from trivet.driver.stack_facts import DriverVersion, FirmwareVersion, InstallRecord

DEFAULT_PATH = "/usr/local/Ascend"
_RECORD = "/etc/ascend_install.info"
_USER = "HwHiAiUser"
_INNER = r"V\d{3}R\d{3}C\d{2,3}\w*"
_VERSION = r"\d[\w.]{0,40}"
# What a container must be given of the driver. Source: the vllm-ascend installation guide.
_FOR_CONTAINERS = (
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info",
    "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so",
    "/usr/local/Ascend/driver/tools/hccn_tool",
    "/etc/hccn.conf",
)


def read_install_record(root: Path) -> InstallRecord | None:
    values = properties(read_text(root, _RECORD))
    if values is None:
        return None
    return InstallRecord(
        driver_path=_path(values.get("driver_install_path_param")),
        firmware_path=_path(values.get("firmware_install_path_param")),
        user=values.get("username") or None,
        group=values.get("usergroup") or None,
    )


def read_driver_version(root: Path, install: InstallRecord | None) -> DriverVersion | None:
    folder = (install.driver_path if install else None) or DEFAULT_PATH
    file = f"{folder}/driver/version.info"
    return driver_version(properties(read_text(root, file)), file)


def driver_version(values: dict[str, str] | None, file: str) -> DriverVersion | None:
    if values is None:
        return None
    firmware = version_ranges(values.get("compatible_version_fw"))
    return DriverVersion(
        file=file,
        version=version(values.get("version")),
        package_version=version(values.get("package_version")),
        inner_version=inner_version(values.get("innerversion")),
        compatible_versions=inner_versions(values.get("compatible_version")),
        compatible_firmware=firmware[0] if firmware is not None and len(firmware) == 1 else None,
    )


def read_firmware_version(root: Path, install: InstallRecord | None) -> FirmwareVersion | None:
    folder = (install.firmware_path if install else None) or DEFAULT_PATH
    file = f"{folder}/firmware/version.info"
    return firmware_version(properties(read_text(root, file)), file)


def firmware_version(values: dict[str, str] | None, file: str) -> FirmwareVersion | None:
    if values is None:
        return None
    return FirmwareVersion(
        file=file,
        version=version(values.get("version")),
        package_version=version(values.get("package_version")),
        compatible_drivers=version_ranges(values.get("compatible_version_drv")),
    )


def read_driver_user(root: Path) -> tuple[int, int] | None:
    """The user and group that own the device nodes, from /etc/passwd."""
    match = re.search(rf"^{_USER}:[^:\n]*:(\d+):(\d+):", read_text(root, "/etc/passwd") or "", re.MULTILINE | re.ASCII)
    user, group = (integer(match[1]), integer(match[2])) if match else (None, None)
    return None if user is None or group is None else (user, group)


def read_present(root: Path) -> dict[str, bool | None]:
    """Which of the driver's files are here; unknown where the tree was captured without their folder."""
    return {path: _is_present(root, path) for path in _FOR_CONTAINERS}


def properties(text: str | None) -> dict[str, str] | None:
    """The lines `Name=value` by their names in lower case; None without a file, or without any such line."""
    lines = (line.partition("=") for line in (text or "").splitlines())
    return {name.strip().lower(): value.strip() for name, equals, value in lines if equals and name.strip()} or None


def version(text: str | None) -> str | None:
    return text if text is not None and re.fullmatch(_VERSION, text, re.ASCII) else None


def inner_version(text: str | None) -> str | None:
    return text if text is not None and re.fullmatch(_INNER, text, re.ASCII) else None


def inner_versions(text: str | None) -> tuple[str, ...] | None:
    """All of `[A],[B]` or `[A,B],[C]`; None if any is none."""
    words = re.split(r"[\[\], ]+", (text or "").strip("[] "))
    return tuple(words) if all(inner_version(word) for word in words) else None


def version_ranges(text: str | None) -> tuple[tuple[str, str], ...] | None:
    """`[23.0.0,23.0.0.],[24.0,24.0.]` as pairs; what an end with a dot means is for those who compare."""
    one = rf"\[\s*{_VERSION}\s*,\s*{_VERSION}\s*\]"
    if text is None or not re.fullmatch(rf"{one}(?:\s*,\s*{one})*", text, re.ASCII):
        return None
    return tuple(re.findall(rf"\[\s*({_VERSION})\s*,\s*({_VERSION})\s*\]", text, re.ASCII))


def _path(text: str | None) -> str | None:
    return text.rstrip("/") or "/" if text is not None and text.startswith("/") else None


def _is_present(root: Path, path: str) -> bool | None:
    if exists(root, path):
        return True
    # A captured tree without /usr/local says nothing about what was in it.
    above = next((str(folder) for folder in Path(path).parents if exists(root, str(folder))), "/")
    return None if above == "/" else False
