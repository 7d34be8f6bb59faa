"""The ratios as a picture: for each question a bar for each peer, and the line at 1 that says who is faster."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from trivet.serve.bench.peers.compare import Ratio

_LABEL, _BARS, _NUMBERS = 200, 420, 130  # widths, in pixels
_ROW, _HEAD = 20, 34
_FASTER, _SLOWER, _INK = "#2f7d5b", "#b4532a", "#222"


def picture(title: str, ratios: Sequence[Ratio]) -> str:
    """An SVG of the ratios, in the order given within each question."""
    questions = list(dict.fromkeys(each.question for each in ratios))
    greatest = max(1.0, *(each.high for each in ratios))
    scale = _BARS / greatest
    parts, top = [_text(12, 22, title, "bold")], _HEAD
    for question in questions:
        parts.append(_text(12, top + 14, question, "bold"))
        top += _ROW
        first = top
        for each in (ratio for ratio in ratios if ratio.question == question):
            parts += _bar(each, top, scale)
            top += _ROW
        x = _LABEL + scale
        parts.append(
            f'<line x1="{x:.1f}" y1="{first - 3}" x2="{x:.1f}" y2="{top - 3}" stroke="{_INK}" stroke-dasharray="3 3"/>'
        )
        top += _ROW // 2
    width, height = _LABEL + _BARS + _NUMBERS, top + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _bar(ratio: Ratio, top: int, scale: float) -> list[str]:
    colour = _FASTER if ratio.ratio >= 1 else _SLOWER
    low, high = _LABEL + ratio.low * scale, _LABEL + ratio.high * scale
    middle = top + 6
    return [
        _text(12, top + 10, ratio.peer),
        f'<rect x="{_LABEL}" y="{top}" width="{ratio.ratio * scale:.1f}" height="12" fill="{colour}"/>',
        f'<line x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}" stroke="{_INK}"/>',
        _text(_LABEL + _BARS + 8, top + 10, f"{ratio.ratio:.2f}×  {ratio.ours:.0f} : {ratio.theirs:.0f}"),
    ]


def _text(x: int, y: int, words: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}">{escape(words)}</text>'
