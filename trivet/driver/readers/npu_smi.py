"""Asks npu-smi in two rounds: what NPUs there are, and then each of them. It only reads, within the time agreed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trivet.driver.npu_facts import NpuBoard, NpuErrors, NpuHealth, NpuSmi, NpuSuperPod
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.commands import Output, ask
from trivet.driver.readers.npu_fields import block_of, board_of, counts_of, health_of, super_pod_of
from trivet.driver.readers.npu_matrix import parse_links, parse_map
from trivet.driver.readers.npu_table import NpuTable, parse_table

_Part = TypeVar("_Part")

_TABLE = ("npu-smi", "info")
_MAP = ("npu-smi", "info", "-m")
_LINKS = ("npu-smi", "info", "-t", "topo")
_A3 = "Ascend910"  # as npu-smi calls its chips; only they are in a super pod


@dataclass(frozen=True)
class _Each:
    """What the second round says of every card and chip."""

    outputs: tuple[Output, ...] = ()
    boards: tuple[NpuBoard, ...] | None = None
    health: tuple[NpuHealth, ...] | None = None
    errors: tuple[NpuErrors, ...] | None = None
    super_pods: tuple[NpuSuperPod, ...] | None = None


def read_npu_smi(root: Path, captured: Captured, deadline: float) -> NpuSmi | None:
    """None where nothing is known of npu-smi, which a live host never says: there it is absent or it is run."""
    table, mapping, links = ask(root, captured, (_TABLE, _MAP, _LINKS), deadline)
    if table is None:
        return None
    if table.command.outcome == "absent":
        return _npu_smi((table,), NpuTable(None, None, None, None, is_partial=False), None, None, _Each())
    parsed = parse_table(table.text)
    pods = _chips(parsed) if any(chip.name == _A3 for chip in parsed.chips or ()) else ()
    each = _ask_each(root, captured, _chips(parsed), pods, deadline)
    outputs = (table, *(output for output in (mapping, links) if output is not None), *each.outputs)
    return _npu_smi(outputs, parsed, mapping, links, each)


def _npu_smi(
    outputs: tuple[Output, ...], table: NpuTable, mapping: Output | None, links: Output | None, each: _Each
) -> NpuSmi:
    return NpuSmi(
        commands=tuple(output.command for output in outputs),
        is_partial=table.is_partial,
        tool_version=table.tool_version,
        driver_version=table.driver_version,
        chips=table.chips,
        processes=table.processes,
        mappings=None if mapping is None else parse_map(mapping.text),
        boards=each.boards,
        health=each.health,
        errors=each.errors,
        links=None if links is None else parse_links(links.text),
        super_pods=each.super_pods,
    )


def _chips(table: NpuTable) -> tuple[tuple[int, int | None], ...]:
    return tuple((chip.npu_id, chip.chip_id) for chip in table.chips or ())


_Who = tuple[int, int | None]  # a card and its chip


def _ask_each(
    root: Path, captured: Captured, chips: tuple[_Who, ...], pods: tuple[_Who, ...], deadline: float
) -> _Each:
    if not chips:
        return _Each()
    cards = dict.fromkeys((npu_id, None) for npu_id, _ in chips)
    boards = dict.fromkeys((*cards, *chips))  # a 950 has no chip numbers, so its card is its chip
    asked = [
        *(("board", *who) for who in boards),
        *((kind, *who) for kind in ("health", "ecc", "pcie-err") for who in chips),
        *(("spod-info", *who) for who in pods),
    ]
    answers = ask(root, captured, tuple(_words(*each) for each in asked), deadline)
    texts = {each: output.text for each, output in zip(asked, answers, strict=True) if output is not None}
    blocks = {each: block_of(text, *each[1:]) for each, text in texts.items()}
    counts = [(counts_of(blocks.get(("ecc", *who))), counts_of(blocks.get(("pcie-err", *who)))) for who in chips]
    return _Each(
        outputs=tuple(output for output in answers if output is not None),
        boards=_known([board_of(blocks.get(("board", *who))) for who in boards]),
        health=_known([health_of(blocks.get(("health", *who))) for who in chips]),
        errors=_known(
            [
                NpuErrors(*who, ecc, pcie) if ecc or pcie else None
                for who, (ecc, pcie) in zip(chips, counts, strict=True)
            ]
        ),
        super_pods=_known([super_pod_of(blocks.get(("spod-info", *who))) for who in pods]),
    )


def _words(kind: str, npu_id: int, chip_id: int | None) -> tuple[str, ...]:
    chip = () if chip_id is None else ("-c", str(chip_id))
    return ("npu-smi", "info", "-t", kind, "-i", str(npu_id), *chip)


def _known(parts: list[_Part | None]) -> tuple[_Part, ...] | None:
    return tuple(part for part in parts if part is not None) or None
