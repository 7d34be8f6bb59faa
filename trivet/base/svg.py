"""Pictures as SVG text: a few shapes, and a panel whose axes both go by powers of two. It knows nothing of figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, floor, log2
from typing import Literal
from xml.sax.saxutils import escape

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]  # in pixels, from the left and from the top

INK, GREY, EDGE, FAINT, PALE = "#222", "#666", "#b5bdb9", "#ddd", "#f4f6f5"  # from the darkest on


def document(width: float, height: float, shapes: Iterable[str]) -> str:
    """A whole file: `shapes` on white, in the order in which they cover each other."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" font-size="12" fill="{INK}">\n'
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


def text(at: Point, words: str, anchor: Anchor = "start", colour: str = INK, is_bold: bool = False) -> str:
    weight = ' font-weight="bold"' if is_bold else ""
    return (
        f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(words)}</text>'
    )


def line(points: Iterable[Point], colour: str = INK, width: float = 1, is_dashed: bool = False) -> str:
    """Through `points`, in order."""
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = ' stroke-dasharray="3 3"' if is_dashed else ""
    return f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashes}/>'


def bar(at: Point, width: float, height: float, colour: str, says: str | None = None) -> str:
    """A filled field from its upper left corner. It `says` something where it is pointed at."""
    return f'<rect {_corner(at, width, height)} fill="{colour}"{_title("rect", says)}'


def frame(at: Point, width: float, height: float) -> str:
    """A pale field with an edge, below what belongs together."""
    return f'<rect {_corner(at, width, height)} rx="6" fill="{PALE}" stroke="{EDGE}"/>'


def dot(at: Point, colour: str, says: str | None = None, is_hollow: bool = False) -> str:
    """A mark. It `says` something where it is pointed at."""
    fill = "white" if is_hollow else colour
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4" fill="{fill}" stroke="{colour}"{_title("circle", says)}'


def _corner(at: Point, width: float, height: float) -> str:
    return f'x="{at[0]:.1f}" y="{at[1]:.1f}" width="{width:.1f}" height="{height:.1f}"'


def _title(shape: str, says: str | None) -> str:
    """The end of an open shape."""
    return "/>" if says is None else f"><title>{escape(says)}</title></{shape}>"


@dataclass(frozen=True)
class Panel:
    """A field between two powers of two each way: equal factors are equal lengths, so a power law is a straight line.

    `left`, `width` and `height` are of the whole panel, with the `margin` in which its marks are named.
    """

    left: float
    width: float
    height: float
    margin: float
    columns: Point  # the least and the greatest value across
    rows: Point  # and upwards

    def at(self, x: float, y: float) -> Point:
        """Where the values are drawn."""
        across, up = _share(x, self.columns), _share(y, self.rows)
        return (
            self.left + self.margin + (self.width - 2 * self.margin) * across,
            self.height - self.margin - (self.height - 2 * self.margin) * up,
        )

    def grid(self, columns: Mapping[float, str], rows: Mapping[float, str]) -> Iterator[str]:
        """A faint line for each of the named values, across and upwards, and their names in the margin."""
        for x, name in columns.items():
            foot = self.at(x, self.rows[0])
            yield line([foot, self.at(x, self.rows[1])], FAINT)
            yield text((foot[0], foot[1] + 16), name, "middle")
        for y, name in rows.items():
            start = self.at(self.columns[0], y)
            yield line([start, self.at(self.columns[1], y)], FAINT)
            yield text((start[0] - 4, start[1] + 4), name, "end")


def powers(values: Iterable[float]) -> list[float]:
    """The powers of two from the one below the least of `values` to the one above the greatest."""
    found = [log2(value) for value in values]
    return [2.0**power for power in range(floor(min(found)), ceil(max(found)) + 1)]


def _share(value: float, ends: Point) -> float:
    """How far from one end to the other the value is; of ends that are one, at it."""
    whole = log2(ends[1] / ends[0])
    return log2(value / ends[0]) / whole if whole else 0.0
