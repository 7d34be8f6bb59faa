"""Parses what npu-smi and hccn_tool print as `Name : value`, line by line.

A line is believed where it is whole: it ends with a newline and holds one value. A name that comes twice in a block
with different values says nothing. An empty line ends a block, which is of the card and the chip that it names, or else
of the card that its text began with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import get_args

from trivet.driver.npu_facts import Health, NpuBoard, NpuHealth, NpuSuperPod
from trivet.driver.readers.files import integer
from trivet.driver.readers.sysfs_pci import pci_address

_FIELD = re.compile(r"[ \t]*([A-Za-z][\w ./()%-]{0,60}?)[ \t]*:[ \t]*(.*)")
_JOINED = re.compile(r"[ \t]:[ \t]|\t|  .*:")  # a second name and its colon: two lines that became one
_CODES = re.compile(r"(?:0x)?[0-9a-fA-F]{8}(?:[ ,;]+(?:0x)?[0-9a-fA-F]{8})*")
_NOTHING = ("", "NA", "N/A", "-", "None")
_WHOSE = ("NPU ID", "Chip ID")
_MAX_LINE = 1000


@dataclass(frozen=True)
class Block:
    """Some lines of one output, with the card and the chip they are of."""

    npu_id: int | None
    chip_id: int | None
    values: dict[str, str]  # without whose they are


def parse_blocks(text: str) -> tuple[Block, ...]:
    """The blocks that have values of their own, in order."""
    card: dict[str, str] = {}
    blocks: list[Block] = []
    for values in _parts(text):
        if not blocks and values.keys() <= {"NPU ID", "Chip Count"}:
            card = values
            continue
        whose = {name: (card | values).get(name) for name in _WHOSE}
        own = {name: value for name, value in values.items() if name not in _WHOSE}
        blocks.append(Block(number(whose["NPU ID"]), number(whose["Chip ID"]), own))
    return tuple(blocks)


def block_of(text: str, npu_id: int, chip_id: int | None) -> Block | None:
    """The one block of a card and chip that was asked for. Where no chip was asked for, the block may name one."""
    blocks = [block for block in parse_blocks(text) if block.npu_id == npu_id and chip_id in (None, block.chip_id)]
    return replace(blocks[0], chip_id=chip_id) if len(blocks) == 1 else None


def board_of(block: Block | None) -> NpuBoard | None:
    """`-t board`."""
    if block is None or block.npu_id is None or not {"Chip Name", "Software Version"} & block.values.keys():
        return None
    return NpuBoard(
        npu_id=block.npu_id,
        chip_id=block.chip_id,
        product=known(block.values, "Product Name"),
        model=known(block.values, "Model"),
        manufacturer=known(block.values, "Manufacturer"),
        chip_type=known(block.values, "Chip Type"),
        chip_name=known(block.values, "Chip Name"),
        npu_name=known(block.values, "NPU Name"),
        driver_version=known(block.values, "Software Version"),
        firmware_version=known(block.values, "Firmware Version"),
        compatibility=known(block.values, "Compatibility"),
        address=pci_address(known(block.values, "PCIe Bus Info")),
        pci_vendor=_hexadecimal(known(block.values, "PCI Vendor ID")),
        pci_device=_hexadecimal(known(block.values, "PCI Device ID")),
        num_chips=number(known(block.values, "Chip Count")),
    )


def health_of(block: Block | None) -> NpuHealth | None:
    """`-t health`, in which "NA" stands for "no error"."""
    if block is None or block.npu_id is None or not {"Health", "Health Status"} & block.values.keys():
        return None
    word = block.values.get("Health", block.values.get("Health Status"))
    codes, sentence = block.values.get("Error Code"), known(block.values, "Error Information")
    return NpuHealth(
        npu_id=block.npu_id,
        chip_id=block.chip_id,
        health=next((health for health in get_args(Health) if health == word), None),
        error_codes=() if codes == "NA" else _codes(codes),
        faults=() if sentence is None else (sentence,),
    )


def counts_of(block: Block | None) -> dict[str, int] | None:
    """The counters of `-t ecc` and `-t pcie-err`."""
    if block is None:
        return None
    counts = {
        name: number(value)
        for name, value in block.values.items()
        if re.search(r"Error Count$|Err Cnt$|Pages Count$|^Retry Count$", name)
    }
    return {name: count for name, count in counts.items() if count is not None} or None


def super_pod_of(block: Block | None) -> NpuSuperPod | None:
    """`-t spod-info`. Source of the names: CANN's document of HCCL_LOGIC_SUPERPOD_ID, HDK's of SDID."""
    if block is None or block.npu_id is None or not {"SDID", "Super Pod ID"} & block.values.keys():
        return None
    sdid, pod = (number(known(block.values, name)) for name in ("SDID", "Super Pod ID"))
    return NpuSuperPod(block.npu_id, block.chip_id, sdid, pod)


def whole_lines(text: str) -> list[str]:
    """Those that end with a newline: the text of a last one may be cut, which no value shows."""
    return [line.rstrip("\r") for line in text.split("\n")[:-1]]


def parse_values(lines: list[str]) -> dict[str, str]:
    """Every name and its value, of those lines that are `Name : value`."""
    values: dict[str, str] = {}
    torn: set[str] = set()
    for line in lines:
        match = _FIELD.fullmatch(line.rstrip()) if len(line) <= _MAX_LINE else None
        if match is None:
            continue
        name, value = match[1], match[2].strip()
        if _JOINED.search(value) or values.get(name, value) != value:
            torn.add(name)
        values[name] = value
    return {name: value for name, value in values.items() if name not in torn}


def known(values: dict[str, str], name: str) -> str | None:
    value = values.get(name, "")
    return None if value in _NOTHING else value


def number(text: str | None) -> int | None:
    """A number as the tools write it, which is without zeros in front."""
    return None if text is None or re.match(r"0\d", text) else integer(text)


def _parts(text: str) -> list[dict[str, str]]:
    parts: list[list[str]] = [[]]
    for line in whole_lines(text):
        if line.strip():
            parts[-1].append(line)
        else:
            parts.append([])
    return [values for part in parts if (values := _of_one(part))]


def _of_one(lines: list[str]) -> dict[str, str]:
    """The values of a block. A name that comes twice in it shows that two chips became one, so it is of neither."""
    values = parse_values(lines)
    names = [match[1] for line in lines if (match := _FIELD.fullmatch(line.rstrip()[:_MAX_LINE])) is not None]
    return values if len(names) == len(set(names)) else {name: values[name] for name in values if name != "Chip ID"}


def _codes(text: str | None) -> tuple[str, ...] | None:
    return tuple(re.split(r"[ ,;]+", text)) if text is not None and _CODES.fullmatch(text) else None


def _hexadecimal(text: str | None) -> int | None:
    return integer(text, 16) if text is not None and text.startswith("0x") else None
