"""The ratios as a picture: for each question a bar for each peer, and the line at 1 that says who is faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trivet.base.svg import bar, document, line, text
from trivet.serve.bench.peers.compare import Ratio

_LABEL, _BARS, _NUMBERS = 200, 420, 130  # widths, in pixels
_ROW, _HEAD = 20, 34
_FASTER, _SLOWER = "#2f7d5b", "#b4532a"


def picture(title: str, ratios: Sequence[Ratio]) -> str:
    """An SVG of the ratios, in the order given within each question."""
    questions = list(dict.fromkeys(each.question for each in ratios))
    scale = _BARS / max(1.0, *(each.high for each in ratios))
    shapes, top = [text((12, 22), title, is_bold=True)], _HEAD
    for question in questions:
        shapes.append(text((12, top + 14), question, is_bold=True))
        top += _ROW
        first = top
        for each in (ratio for ratio in ratios if ratio.question == question):
            shapes += _bar(each, top, scale)
            top += _ROW
        shapes.append(line([(_LABEL + scale, first - 3), (_LABEL + scale, top - 3)], is_dashed=True))
        top += _ROW // 2
    return document(_LABEL + _BARS + _NUMBERS, top + 8, shapes)


def _bar(ratio: Ratio, top: int, scale: float) -> Iterator[str]:
    yield text((12, top + 10), ratio.peer)
    yield bar((_LABEL, top), ratio.ratio * scale, 12, _FASTER if ratio.ratio >= 1 else _SLOWER)
    yield line([(_LABEL + end * scale, top + 6) for end in (ratio.low, ratio.high)])
    yield text((_LABEL + _BARS + 8, top + 10), f"{ratio.ratio:.2f}×  {ratio.ours:.0f} : {ratio.theirs:.0f}")
