"""The layout as a picture, SVG: a box for each NUMA node, in it what hangs below, and beside each NPU where it runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from xml.sax.saxutils import escape

from trivet.driver.facts import HostFacts
from trivet.driver.layout.placement import NpuPlacement, placements
from trivet.driver.layout.text import Say, distances, heading, label
from trivet.driver.layout.tree import Branch, Bridge, Device, Kind, tree
from trivet.driver.phrases import Language, say
from trivet.driver.summary import ranges

_WIDTH, _ROW, _GAP, _PAD = 470, 22, 16, 12  # in pixels
_INDENT = 16
_COLUMNS = 2
_COLOURS: dict[Kind, str] = {"npu": "#2f7d5b", "disk": "#3566a8", "nic": "#b07a1e"}
_INK, _PALE = "#222222", "#666666"


def picture(facts: HostFacts, language: Language = "en") -> str:
    """The nodes in two columns, each as high as what is in it."""
    speak, placed = partial(say, language), {each.address: each for each in placements(facts)}
    branches = tree(facts)
    columns = max(1, min(_COLUMNS, len(branches)))
    tops, parts = [_PAD] * columns, list[str]()
    for index, branch in enumerate(branches):
        column = index % columns
        box, height = _node(branch, _PAD + column * (_WIDTH + _GAP), tops[column], placed, speak)
        parts += box
        tops[column] += height + _GAP
    legend = max(tops) + 4
    names: dict[Kind, str] = {"npu": "NPU", "disk": speak("disk"), "nic": speak("network")}
    for index, (kind, name) in enumerate(names.items()):
        parts.append(_dot(_PAD + 6 + index * 90, legend + 4, _COLOURS[kind]))
        parts.append(_text(_PAD + 18 + index * 90, legend + 8, name))
    width, height = 2 * _PAD + columns * _WIDTH + (columns - 1) * _GAP, legend + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _node(branch: Branch, left: int, top: int, placed: dict[str, NpuPlacement], speak: Say) -> tuple[list[str], int]:
    """The parts of a node's box, and its height."""
    rows = [_text(left + _PAD, top + 18, heading(branch, speak), "bold")]
    y = top + _ROW + 4
    others = distances(branch, speak)
    if others:
        rows.append(_text(left + _PAD, y + 12, speak("{others} as far", {"others": others}), colour=_PALE))
        y += _ROW
    y = _things(rows, branch.below, left + _PAD, y, placed, speak)
    height = y - top + 8
    frame = f'<rect x="{left}" y="{top}" width="{_WIDTH}" height="{height}" rx="6" fill="#f4f6f5" stroke="#b5bdb9"/>'
    return [frame, *rows], height


def _things(
    rows: list[str], things: Sequence[Bridge | Device], x: int, y: int, placed: dict[str, NpuPlacement], speak: Say
) -> int:
    """Draws one below the other from `y` on, and returns where the next would begin."""
    for thing in things:
        if isinstance(thing, Bridge):
            rows.append(_text(x, y + 14, f"{speak('bridge')} {thing.address}", colour=_PALE))
            end = _things(rows, thing.below, x + _INDENT, y + _ROW, placed, speak)
            rows.append(f'<line x1="{x + 4}" y1="{y + 20}" x2="{x + 4}" y2="{end - 6}" stroke="#b5bdb9"/>')
            y = end
            continue
        rows += [_dot(x + 6, y + 10, _COLOURS[thing.kind]), _text(x + 18, y + 14, label(thing, speak))]
        y += _ROW
        place = placed.get(thing.address)
        if place is not None:
            values = {"cpus": ranges(place.cpus), "interrupts": ranges(place.interrupt_cpus)}
            words = speak("process on cpus {cpus}, interrupts on {interrupts}", values)
            rows.append(_text(x + 18, y + 9, words, colour=_PALE))
            y += _ROW - 4
    return y


def _dot(x: int, y: int, colour: str) -> str:
    return f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/>'


def _text(x: int, y: int, words: str, weight: str = "normal", colour: str = _INK) -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}" fill="{colour}">{escape(words)}</text>'
