"""Parses what asys and the driver's upgrade-tool print of a device: its health with fault codes, and its firmware.

Both count devices (N of /dev/davinciN), not cards. A table that is cut gives no list of codes, and a value that comes
twice and differs gives none.
"""

from __future__ import annotations

import re
from pathlib import Path

from trivet.driver.npu_facts import NpuDevice
from trivet.driver.readers.files import is_live, list_names, read_text

# hboot1a, hboot1b and hlink are all of one firmware package.
_CAPTURED = r"(?:asys|upgrade-tool)[\w.=-]*\.txt"
_COMPONENT = re.compile(
    r'^\s*\{"device_id":(\d{1,4}), "component":\w{1,40}, "version":(\d{1,5}(?:\.\d{1,5}){2,6})\}$', re.M | re.A
)
_TABLE = re.compile(r"^ *\| Device ID: (\d{1,4}) +\| (?:INFORMATION|Overall Health: (\w{1,20})) +\|$", re.M | re.A)
_STATUS = re.compile(r"^ *\| health +\| (\w{1,20}) +\|$", re.M)
_NUM_CODES = re.compile(r"^ *\| +\| ErrorCode Num: (\d{1,4}) +\|$", re.M | re.A)
_CODE = re.compile(r"^ *\| (0x[0-9a-fA-F]{8}) +\| (\S.{0,200}?) +\|$", re.M)


def read_devices(root: Path) -> tuple[NpuDevice, ...] | None:
    """Of a captured tree in which somebody put their outputs. On a live host none is run: npu-smi tells it too."""
    names = list_names(root, "captured", _CAPTURED) if not is_live(root) else None
    texts = [read_text(root, f"captured/{name}") or "" for name in names or ()]
    return parse_devices("\n".join(texts))


def parse_devices(text: str) -> tuple[NpuDevice, ...] | None:
    """Each device that either tool speaks of, by its number; None where neither does."""
    firmware: dict[int, set[str]] = {}
    health: dict[int, set[str]] = {}
    codes: dict[int, tuple[tuple[str, str], ...]] = {}
    for match in _COMPONENT.finditer(text):
        firmware.setdefault(int(match[1]), set()).add(match[2])
    tables = list(_TABLE.finditer(text))
    ends = [*(each.start() for each in tables), len(text)][1:]
    for table, end in zip(tables, ends, strict=True):
        device, body = int(table[1]), text[table.end() : end]
        status = _STATUS.search(body) if table[2] is None else None
        word = status[1] if status is not None else table[2]
        if word is not None:
            health.setdefault(device, set()).add(word)
        number, rows = _NUM_CODES.search(body), tuple((match[1], match[2]) for match in _CODE.finditer(body))
        if table[2] is not None and number is not None and int(number[1]) == len(rows):
            codes[device] = rows
    found = tuple(
        NpuDevice(
            device_id=device,
            health=_only(health.get(device)),
            error_codes=tuple(code for code, _ in codes[device]) if device in codes else None,
            faults=tuple(fault for _, fault in codes.get(device, ())),
            firmware_version=_only(firmware.get(device)),
        )
        for device in sorted(firmware.keys() | health.keys() | codes.keys())
    )
    return found or None


def _only(values: set[str] | None) -> str | None:
    return next(iter(values)) if values is not None and len(values) == 1 else None
