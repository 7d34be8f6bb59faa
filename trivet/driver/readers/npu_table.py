"""Parses the tables of `npu-smi info`, of every version known: chips, and the processes that use them.

The text may be cut, wrapped by a terminal, or inside a longer one. Its widths differ by chip and version, and its
columns are told by the heading alone. A row says something only where it has as many cells as its heading; a cell only
where all its words fit the names above it. Else it says nothing, and the table is called partial: a number that slid
under another name would be worse than none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import get_args

from trivet.driver.npu_facts import Health, NpuChip, NpuProcess
from trivet.driver.readers.sysfs_pci import ADDRESS, pci_address

_MIB = 1 << 20
_MAX_LINE = 1000  # characters; the widest table is 116 wide
_TITLE = re.compile(r"\|\s*npu-smi\s.*Version:")
_VERSIONS = re.compile(r"\|\s*npu-smi\s+(\S+)\s+Version:\s*(\S+)\s*\|")
_VERSION = re.compile(r"\d[\w.-]*", re.ASCII)
_BORDER = re.compile(r"\+[-=+]*\+")
_NOBODY = re.compile(r"\s*No running processes found in NPU \d+\s*")

_INTEGER = r"(?:0|[1-9]\d{0,11})"
# The names of the columns, and the form of what stands below each. "/" has spaces on either side, both or none.
_NAMES: dict[str, tuple[str, str]] = {
    "NPU ID": ("npu", _INTEGER),
    "NPU": ("npu", _INTEGER),
    "Name": ("name", r"[\w.+-]+"),
    "Health": ("health", r"\w+"),
    "Power(W)": ("power", r"\d{1,5}(?:\.\d{1,3})?|-|NA"),
    "Temp(C)": ("temperature", rf"{_INTEGER}|-|NA"),
    "Hugepages-Usage(page)": ("huge_pages", rf"{_INTEGER}\s*/\s*{_INTEGER}|-|NA"),
    "Chip": ("chip", _INTEGER),
    "Device": ("device", rf"{_INTEGER}|-|NA"),
    "Phy-ID": ("device", rf"{_INTEGER}|-|NA"),
    "Bus-Id": ("address", rf"{ADDRESS}|-|NA"),
    "AICore(%)": ("busy", rf"{_INTEGER}|-|NA"),
    "NPU Util(%)": ("busy", rf"{_INTEGER}|-|NA"),
    "Memory-Usage(MB)": ("memory", rf"{_INTEGER}\s*/\s*{_INTEGER}|-|NA"),
    "HBM-Usage(MB)": ("hbm", rf"{_INTEGER}\s*/\s*{_INTEGER}|-|NA"),
    "Process id in container": ("container_pid", rf"{_INTEGER}|-|NA"),
    "Process id": ("pid", _INTEGER),
    "Process name": ("process_name", r".*?"),
    "Process memory(MB)": ("process_memory", rf"{_INTEGER}|-|NA"),
}
_HEADING = re.compile("|".join(re.escape(name) for name in sorted(_NAMES, key=len, reverse=True)))

Values = dict[str, str]


@dataclass(frozen=True)
class NpuTable:
    tool_version: str | None
    driver_version: str | None
    chips: tuple[NpuChip, ...] | None  # None where the text holds no such table
    processes: tuple[NpuProcess, ...] | None
    is_partial: bool


@dataclass(frozen=True)
class _Row:
    """What one line said, and whether all of it could be understood."""

    values: Values
    is_whole: bool


@dataclass
class _Gathered:
    """What the lines have said so far."""

    chips: list[tuple[Values, Values | None]] = field(default_factory=list)  # the first and the second line of each
    processes: list[Values] = field(default_factory=list)
    first: Values | None = None  # of a chip whose second line has not come yet
    is_partial: bool = False

    def close(self) -> None:
        """A border, or the end, has come: a chip that still waits for its second line will not get it."""
        if self.first is not None:
            self.chips.append((self.first, None))
            self.is_partial = True
        self.first = None


def parse_table(text: str) -> NpuTable:
    lines = _unwrapped(text.splitlines())
    start = next((index for index, line in enumerate(lines) if _TITLE.match(line)), None)
    if start is None:
        return NpuTable(None, None, None, None, is_partial=False)
    title = _VERSIONS.fullmatch(lines[start])
    versions = [word if _VERSION.fullmatch(word) else None for word in title.groups()] if title else [None, None]
    gathered, has_processes = _gather(lines[start + 1 :], len(lines[start]))
    chips = _chips(gathered)
    processes = tuple(_process(values) for values in gathered.processes) if has_processes else None
    return NpuTable(versions[0], versions[1], chips, processes, gathered.is_partial or title is None)


def _unwrapped(lines: list[str]) -> list[str]:
    """The lines as they were before a terminal broke each at its width, which the first border shows."""
    start = next((i for i, line in enumerate(lines) if re.fullmatch(r"\s*\+-{8,}\s*", line)), len(lines))
    end = start + 1
    while end < len(lines) and re.fullmatch(r"-+", lines[end]):
        end += 1
    if end >= len(lines) or not re.fullmatch(r"-*\+\s*", lines[end]):
        return [line.strip() for line in lines]
    width, count = len(lines[start].rstrip()), end + 1 - start
    rows = [lines[i : i + count] for i in range(start, len(lines), count)]
    return ["".join(piece.ljust(width) for piece in row).strip() for row in rows]


def _gather(lines: list[str], width: int) -> tuple[_Gathered, bool]:
    gathered, headings, has_processes = _Gathered(), list[list[list[str]]](), False
    is_open = True  # the last line of all must be a border from end to end
    for line in lines:
        if _TITLE.match(line):  # the output of another run
            break
        if not line.startswith(("|", "+")):
            continue
        if len(line) > _MAX_LINE:
            gathered.is_partial = True
            continue
        is_border = _BORDER.fullmatch(line) is not None
        is_open = not is_border or len(line) < width
        if is_border:
            gathered.close()
            continue
        heading = _heading(line)
        if heading is not None:
            is_new = any("Process id" in names for names in heading)
            headings = [heading] if is_new else [*headings[-1:], heading]
            has_processes = has_processes or is_new
        elif has_processes:
            _take_process(gathered, line, headings[0])
        elif len(headings) == 2:
            _take_chip(gathered, line, headings)
        else:
            gathered.is_partial = True
    gathered.close()
    gathered.is_partial = gathered.is_partial or is_open
    return gathered, has_processes


def _heading(line: str) -> list[list[str]] | None:
    """The names above each cell, if every word of the line is part of one."""
    cells, is_closed = _cells(line)
    if not is_closed or _HEADING.sub("", "".join(cells)).strip() or not _HEADING.search(line):
        return None
    return [_HEADING.findall(cell) for cell in cells]


def _cells(line: str) -> tuple[list[str], bool]:
    """The cells with a bar on either side, and whether these are all."""
    if not line.startswith("|"):
        return [], False
    pieces = line.split("|")
    return pieces[1:-1], not pieces[-1].strip()


def _row(line: str, heading: list[list[str]]) -> _Row:
    cells, is_closed = _cells(line)
    if len(cells) > len(heading) or (is_closed and len(cells) < len(heading)):
        return _Row({}, is_whole=False)
    values: Values = {}
    is_whole = is_closed
    for cell, names in zip(cells, heading, strict=False):  # a line that was cut has its first cells
        pattern = r"\s+".join(f"(?P<{_NAMES[name][0]}>{_NAMES[name][1]})" for name in names)
        match = re.fullmatch(rf"\s*{pattern}\s*", cell, re.ASCII if "Process name" not in names else 0)
        if match is None:
            is_whole = False
            continue
        values |= match.groupdict()
    return _Row(values, is_whole)


def _take_chip(gathered: _Gathered, line: str, headings: list[list[list[str]]]) -> None:
    first, second = (_row(line, heading) for heading in headings)
    # Which of a chip's two lines it is, its second cell but one tells: a word of health, or an address.
    if first.values.get("health") in get_args(Health):
        if gathered.first == first.values and first.is_whole:  # the same line twice
            gathered.is_partial = True
            return
        gathered.close()
        gathered.is_partial = gathered.is_partial or not first.is_whole
        gathered.first = first.values if "npu" in first.values else None
        return
    gathered.is_partial = gathered.is_partial or not second.is_whole
    if "address" not in second.values:
        gathered.close()
    elif gathered.first is None:
        gathered.is_partial = True
    else:
        gathered.chips.append((gathered.first, second.values))
        gathered.first = None


def _take_process(gathered: _Gathered, line: str, heading: list[list[str]]) -> None:
    cells, is_closed = _cells(line)
    if is_closed and len(cells) == 1 and _NOBODY.fullmatch(cells[0]):
        return
    row = _row(line, heading)
    if {"npu", "pid"} <= row.values.keys():
        gathered.processes.append(row.values)
    gathered.is_partial = gathered.is_partial or not row.is_whole


def _chips(gathered: _Gathered) -> tuple[NpuChip, ...]:
    """In the order of the table. Of two rows for one chip, which a table never has, the first."""
    chips: dict[tuple[int, int | None], NpuChip] = {}
    for first, second in gathered.chips:
        chip = _chip(first, second or {})
        if (chip.npu_id, chip.chip_id) in chips:
            gathered.is_partial = True
        chips.setdefault((chip.npu_id, chip.chip_id), chip)
    return tuple(chips.values())


def _chip(first: Values, second: Values) -> NpuChip:
    health = first.get("health")
    memory, hbm, huge_pages = _usage(second.get("memory")), _usage(second.get("hbm")), _usage(first.get("huge_pages"))
    power = first.get("power")
    return NpuChip(
        npu_id=int(first["npu"]),
        chip_id=_number(second.get("chip")),
        device_id=_number(second.get("device")),
        name=first.get("name"),
        health=next((word for word in get_args(Health) if word == health), None),
        address=pci_address(second.get("address")),
        power_w=float(power) if power and power[0].isdigit() else None,
        temperature_c=_number(first.get("temperature")),
        busy_percent=_number(second.get("busy")),
        memory_used_bytes=_mib(memory[0]),
        memory_total_bytes=_mib(memory[1]),
        hbm_used_bytes=_mib(hbm[0]),
        hbm_total_bytes=_mib(hbm[1]),
        huge_pages_used=huge_pages[0],
        huge_pages_total=huge_pages[1],
    )


def _process(values: Values) -> NpuProcess:
    return NpuProcess(
        npu_id=int(values["npu"]),
        chip_id=_number(values.get("chip")),
        pid=int(values["pid"]),
        name=values.get("process_name", "").strip() or None,
        memory_bytes=_mib(_number(values.get("process_memory"))),
        container_pid=_number(values.get("container_pid")),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(_INTEGER, text, re.ASCII) else None


def _usage(text: str | None) -> tuple[int | None, int | None]:
    """Used and total; neither where more is used than there is, since then one of them is not what it seems."""
    parts = [_number(part.strip()) for part in (text or "").split("/")]
    used, total = parts if len(parts) == 2 else (None, None)
    return (used, total) if used is not None and total is not None and used <= total else (None, None)


def _mib(count: int | None) -> int | None:
    return None if count is None else count * _MIB
