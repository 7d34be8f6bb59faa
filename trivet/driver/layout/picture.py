"""The layout as a picture, SVG: a box for each NUMA node, in it what hangs below, and beside each NPU where it runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from trivet.base.settings import Language
from trivet.base.svg import EDGE, GREY, document, dot, frame, line, text
from trivet.driver.facts import HostFacts
from trivet.driver.layout.placement import NpuPlacement, placements
from trivet.driver.layout.text import Say, distances, heading, label
from trivet.driver.layout.tree import Branch, Bridge, Device, Kind, tree
from trivet.driver.phrases import say
from trivet.driver.summary import ranges

_WIDTH, _ROW, _GAP, _PAD = 470, 22, 16, 12  # in pixels
_INDENT = 16
_COLUMNS = 2
_COLOURS: dict[Kind, str] = {"npu": "#2f7d5b", "disk": "#3566a8", "nic": "#b07a1e"}


def picture(facts: HostFacts, language: Language = "en") -> str:
    """The nodes in two columns, each as high as what is in it."""
    speak, placed = partial(say, language), {each.address: each for each in placements(facts)}
    branches = tree(facts)
    columns = max(1, min(_COLUMNS, len(branches)))
    tops, shapes = [_PAD] * columns, list[str]()
    for index, branch in enumerate(branches):
        column = index % columns
        box, height = _node(branch, _PAD + column * (_WIDTH + _GAP), tops[column], placed, speak)
        shapes += box
        tops[column] += height + _GAP
    legend = max(tops) + 4
    names: dict[Kind, str] = {"npu": "NPU", "disk": speak("disk"), "nic": speak("network")}
    for index, (kind, name) in enumerate(names.items()):
        shapes.append(dot((_PAD + 6 + index * 90, legend + 4), _COLOURS[kind]))
        shapes.append(text((_PAD + 18 + index * 90, legend + 8), name))
    return document(2 * _PAD + columns * _WIDTH + (columns - 1) * _GAP, legend + 24, shapes)


def _node(branch: Branch, left: int, top: int, placed: dict[str, NpuPlacement], speak: Say) -> tuple[list[str], int]:
    """The shapes of a node's box, and its height."""
    rows = [text((left + _PAD, top + 18), heading(branch, speak), is_bold=True)]
    y = top + _ROW + 4
    others = distances(branch, speak)
    if others:
        rows.append(text((left + _PAD, y + 12), speak("{others} as far", {"others": others}), colour=GREY))
        y += _ROW
    y = _things(rows, branch.below, left + _PAD, y, placed, speak)
    height = y - top + 8
    return [frame((left, top), _WIDTH, height), *rows], height


def _things(
    rows: list[str], things: Sequence[Bridge | Device], x: int, y: int, placed: dict[str, NpuPlacement], speak: Say
) -> int:
    """Draws one below the other from `y` on, and returns where the next would begin."""
    for thing in things:
        if isinstance(thing, Bridge):
            rows.append(text((x, y + 14), f"{speak('bridge')} {thing.address}", colour=GREY))
            end = _things(rows, thing.below, x + _INDENT, y + _ROW, placed, speak)
            rows.append(line([(x + 4, y + 20), (x + 4, end - 6)], EDGE))
            y = end
            continue
        rows += [dot((x + 6, y + 10), _COLOURS[thing.kind]), text((x + 18, y + 14), label(thing, speak))]
        y += _ROW
        place = placed.get(thing.address)
        if place is not None:
            values = {"cpus": ranges(place.cpus), "interrupts": ranges(place.interrupt_cpus)}
            words = speak("process on cpus {cpus}, interrupts on {interrupts}", values)
            rows.append(text((x + 18, y + 9), words, colour=GREY))
            y += _ROW - 4
    return y
