"""How versions compare, and what the files on disk say of each other. Judges only what is written; else it is None.

Source of the forms: version.info of driver and firmware 24.1 and 25.5, ascend_toolkit_install.info of CANN 8.0 to 9.1.
"""

from __future__ import annotations

import re

from trivet.driver.stack_facts import Cann, DriverVersion, FirmwareVersion

Key = tuple[tuple[int, int], ...]

# What a word means for the order: before the release of that number, or after it.
_BEFORE = {"dev": 0, "alpha": 1, "a": 1, "t": 1, "beta": 2, "b": 2, "rc": 3}
_AFTER = {"post": 1, "spc": 1}
_PRE, _NUMBER, _POST = -1, 0, 1


def version_key(text: str) -> Key:
    """For comparing "8.3.RC2", "25.0.rc1.1", "2.10.0.post4": 8.3.RC2 < 8.3.0 = 8.3 < 8.3.0.post1. Empty: no version.

    What follows a plus sign only names a build.
    """
    parts: list[tuple[int, int]] = []
    # 18 digits: whatever a file has in a version's place, Python converts no string of thousands.
    # By way of upper case, in which letters of other scripts are what they are in either: a ß is two of ours.
    plain = text.upper().lower().partition("+")[0].removeprefix("v")
    for number, word in re.findall(r"(\d{1,18})|([a-z]+)", plain, re.ASCII):
        if number:
            parts.append((_NUMBER, int(number)))
        elif word in _BEFORE:
            parts.append((_PRE, _BEFORE[word]))
        elif word in _AFTER:
            parts.append((_POST, _AFTER[word]))
    return _without_zeros(parts)


def _without_zeros(parts: list[tuple[int, int]]) -> Key:
    """No zero at the end, and none before a word, so that 8.0 and 8.0.0 and 8.0.RC1 and 8.RC1 are as they should be.

    A mark for the end is last: a version that ends is after one that goes on with "rc" and before one with "post".
    """
    kept: list[tuple[int, int]] = []
    for kind, value in parts:
        if kind != _NUMBER:
            while kept and kept[-1] == (_NUMBER, 0):
                kept.pop()
        kept.append((kind, value))
    while kept and kept[-1] == (_NUMBER, 0):
        kept.pop()
    return (*kept, (_NUMBER, -1)) if parts else ()


def same_release(one: str, other: str) -> bool:
    """Are the first three numbers the same? torch 2.10.0 and torch_npu 2.10.0.post4 are."""
    return _release(one) == _release(other) != None  # noqa: E711  a chain: neither is unknown


def _release(text: str) -> tuple[int, ...] | None:
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(each or 0) for each in match.groups()) if match else None


def matches(version: str, pattern: str) -> bool:
    """Is `version` one of "25.5.X", or the very one that is written, in whichever letters?"""
    text = pattern.strip()
    if text.upper().endswith(".X"):
        return version.lower().startswith(text[:-1].lower())
    return bool(version_key(text)) and version_key(version) == version_key(text)


def in_range(version: str, first: str, last: str) -> bool:
    """Both ends included. An end stands for all that begins as it does: "25.5." for 25.5.2, "7.5.99" for 7.5.99.3."""
    if any(version == end or version.startswith(end.rstrip(".") + ".") for end in (first, last)):
        return True
    return version_key(first.rstrip(".")) <= version_key(version) <= version_key(last.rstrip("."))


def firmware_fits(driver: DriverVersion | None, firmware: str | None, file: FirmwareVersion | None) -> bool | None:
    """Is the firmware in the range that the driver's file names, and the driver in one that the firmware's file names?

    `firmware` is what the chip runs; without it, what the file says was installed.
    """
    running = firmware or (file.version if file else None)
    said: list[bool] = []
    if driver and driver.compatible_firmware and running:
        said.append(in_range(running, *driver.compatible_firmware))
    if driver and driver.version and file and file.compatible_drivers and file.version == running:
        said.append(any(in_range(driver.version, *each) for each in file.compatible_drivers))
    return all(said) if said else None


def cann_fits(driver: DriverVersion | None, cann: Cann) -> bool | None:
    """Does either of the two files name the other's branch, as V100R001C23? None where one of them does not say.

    Lists end with what was known when they were written, so one direction is enough.
    """
    own = _branch(cann.inner_version)
    other = _branch(driver.inner_version if driver else None)
    takes = {_branch(each) for each in cann.compatible_versions or ()}
    taken = {_branch(each) for each in (driver.compatible_versions if driver else None) or ()}
    if (other and other in takes) or (own and own in taken):
        return True
    return False if own and other and takes and taken else None


def _branch(inner: str | None) -> str | None:
    match = re.match(r"V\d+R\d+C\d+", inner or "")
    return match[0] if match else None
