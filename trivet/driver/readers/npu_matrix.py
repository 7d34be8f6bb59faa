"""Parses the map of `npu-smi info -m` and the matrix of `-t topo`. Each is believed as a whole or not at all."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import get_args

from trivet.driver.npu_facts import NpuLinks, NpuMapping, NpuPath
from trivet.driver.readers.files import id_list
from trivet.driver.readers.npu_fields import number, whole_lines

_COLUMNS = ("NPU ID", "Slot ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name")
_NAME = re.compile(r"[A-Za-z][\w.-]*(?: [\w.-]+)?", re.ASCII)
_MAX_NPUS = 64


def parse_map(text: str) -> tuple[NpuMapping, ...] | None:
    """The text may be longer: the map begins at its heading, and an empty line ends it."""
    all_lines = [line.strip() for line in whole_lines(text)]
    start = next((index for index, line in enumerate(all_lines) if re.match(r"NPU ID\s{2,}", line)), len(all_lines))
    lines = list(takewhile(bool, all_lines[start:]))
    columns = re.split(r"\s{2,}", lines[0]) if lines else []
    if not text.endswith("\n") or not {"NPU ID", "Chip ID", "Chip Name"} <= set(columns) <= set(_COLUMNS):
        return None
    if columns[-1] != "Chip Name" or len(set(columns)) < len(columns):
        return None
    rows = [line.split(None, len(columns) - 1) for line in lines[1:]]
    mappings = [_mapping(dict(zip(columns, row, strict=True))) for row in rows if len(row) == len(columns)]
    known = tuple(mapping for mapping in mappings if mapping is not None)
    return known if len(known) == len(rows) == len({(each.npu_id, each.chip_id) for each in known}) else None


def parse_links(text: str) -> tuple[NpuLinks, ...] | None:
    """None too where the matrix says of a pair one thing in one direction and another in the other."""
    lines = whole_lines(text)
    start = next((index for index, line in enumerate(lines) if line.strip().startswith("NPU0")), len(lines))
    npus = _heading(lines[start]) if start < len(lines) else None
    if npus is None:
        return None
    rows = [_links(line.split(), npus) for line in lines[start + 1 : start + 1 + len(npus)]]
    links = {row.npu: row for row in rows if row is not None}
    if list(links) != npus or any(links[a].paths[b] != links[b].paths[a] for a in npus for b in npus):
        return None
    return tuple(links.values())


def _mapping(row: dict[str, str]) -> NpuMapping | None:
    if not all(re.fullmatch(r"\d{1,9}|-", word, re.ASCII) for name, word in row.items() if name != "Chip Name"):
        return None
    npu_id, chip_id = number(row["NPU ID"]), number(row["Chip ID"])
    if npu_id is None or chip_id is None or not _NAME.fullmatch(row["Chip Name"]):
        return None
    return NpuMapping(
        npu_id, chip_id, number(row.get("Chip Logic ID")), number(row.get("Chip Phy-ID")), row["Chip Name"]
    )


def _heading(line: str) -> list[int] | None:
    match = re.fullmatch(r"\s*((?:NPU\d{1,2}\s+)+)CPU Affinity\s*", line, re.ASCII)
    if match is None:
        return None
    npus = [int(word.removeprefix("NPU")) for word in match[1].split()]
    return npus if npus == list(range(len(npus))) and len(npus) <= _MAX_NPUS else None


def _links(words: list[str], npus: list[int]) -> NpuLinks | None:
    if len(words) != len(npus) + 2 or not re.fullmatch(r"NPU\d{1,2}", words[0], re.ASCII):
        return None
    npu = int(words[0].removeprefix("NPU"))
    kinds = dict(zip(npus, words[1:-1], strict=True))
    if not all(re.fullmatch(r"[A-Z_]+", kind) and (kind == "X") == (other == npu) for other, kind in kinds.items()):
        return None
    paths = {other: next((path for path in get_args(NpuPath) if path == kind), None) for other, kind in kinds.items()}
    return NpuLinks(npu, paths, id_list(words[-1]))
