"""A load as a picture for people, in SVG: its phases in a row, and below them what each worker read when."""

from __future__ import annotations

from collections.abc import Mapping

from trivet.base.svg import bar, document, text
from trivet.base.units import format_bytes, format_seconds
from trivet.framework.model.loading.engines import EngineName
from trivet.framework.model.loading.report import LoadReport, bottleneck

_WIDTH, _MARGIN, _LANE, _BAR = 960, 90, 22, 16
_PHASES = ("#4e79a7", "#59a14f", "#9c755f", "#b07aa1", "#76b7b2", "#edc948", "#e15759")
_ENGINES: Mapping[EngineName, str] = {
    "io_uring": "#4e79a7", "direct": "#f28e2b", "buffered": "#59a14f", "mapped": "#b07aa1",
}  # fmt: skip


def timeline(report: LoadReport) -> str:
    """The picture as the text of an SVG file. Time runs to the right; a bar says what it is when pointed at."""
    total = max(report.total_s, 1e-9)
    scale = (_WIDTH - _MARGIN - 10) / total
    starts, at = {}, 0.0
    for name, seconds in report.phases.items():
        starts[name] = at
        at += seconds
    bars = [
        _bar(0, starts[name] * scale, seconds * scale, _PHASES[i % len(_PHASES)], f"{name} {format_seconds(seconds)}")
        for i, (name, seconds) in enumerate(report.phases.items())
    ]
    read_at = starts.get("read", 0.0)
    lanes = sorted({(each.engine, each.worker) for each in report.read.extents})
    for each in report.read.extents:
        says = f"{each.file.name}: {format_bytes(each.num_bytes)} by {each.engine}, {each.reason}"
        lane = 1 + lanes.index((each.engine, each.worker))
        x, width = (read_at + each.begin_s) * scale, (each.end_s - each.begin_s) * scale
        bars.append(_bar(lane, x, width, _ENGINES[each.engine], says))
    labels = [_label(0, "phases"), *(_label(1 + i, f"{name} {worker}") for i, (name, worker) in enumerate(lanes))]
    title = f"{report.model}: {format_bytes(report.read.num_bytes)} in {format_seconds(total)}"
    caption = f"{title}, read at {report.read.bytes_per_s / 1e9:.2f} GB/s; bottleneck: {bottleneck(report)[0]}"
    return document(_WIDTH, (len(lanes) + 3) * _LANE, [text((4, 15), caption, is_bold=True), *bars, *labels])


def _bar(lane: int, x: float, width: float, colour: str, says: str) -> str:
    return bar((_MARGIN + x, (lane + 1) * _LANE), max(width, 0.5), _BAR, colour, says)


def _label(lane: int, says: str) -> str:
    return text((4, (lane + 1) * _LANE + 12), says)
