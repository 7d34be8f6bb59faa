"""Rows as people read them: an aligned table, each figure with its spread and a bar for its share of the limit."""

from __future__ import annotations

from collections.abc import Sequence

from trivet.base.units import format_seconds
from trivet.serve.bench.figure import Unit
from trivet.serve.bench.rows import Row

_BAR_WIDTH = 20


def table(rows: Sequence[Row]) -> str:
    """The table under a heading of what was measured on what; without a trailing newline. All rows are of one run."""
    lines = [[_name(row), _format(row["value"], row["unit"]), _spread(row), _share(row)] for row in rows]
    head = ["", "median", "spread", "share of the limit"]
    widths = [max(len(line[i]) for line in (head, *lines)) for i in range(3)]
    aligned = [
        f"{line[0]:<{widths[0]}}  {line[1]:>{widths[1]}}  {line[2]:>{widths[2]}}  {line[3]}".rstrip()
        for line in (head, *lines)
    ]
    return "\n".join([_heading(rows[0]), "", *aligned])


def _heading(row: Row) -> str:
    model = [] if row["model"] is None else [f"{row['model']} in {row['dtype']}"]
    changes = ", changed since" if row["is_dirty"] else ""
    commit = "" if row["commit"] is None else f" at {row['commit'][:10]}{changes}"
    host = f"{row['num_threads']} threads of {row['cpu']}, {row['target']}"
    return ", ".join([*model, host, f"trivet {row['trivet']}{commit}", f"{row['repeats']} repeats"])


def _name(row: Row) -> str:
    when = row["settings"].get("when")
    return row["name"] if when is None else f"{row['name']}, {when}"


def _spread(row: Row) -> str:
    return f"{_number(row['low'], row['unit'])} … {_number(row['high'], row['unit'])}"


def _share(row: Row) -> str:
    share = row["share_of_limit"]
    if share is None:
        return ""
    bar = "█" * min(_BAR_WIDTH, round(_BAR_WIDTH * share))
    return f"{bar:·<{_BAR_WIDTH}} {share:4.0%} of {row['limit']}"


def _format(value: float, unit: Unit) -> str:
    names = {"tokens/s": " tokens/s", "bytes/s": " GB/s", "FLOP/s": " GFLOP/s", "s": ""}
    return f"{_number(value, unit)}{names[unit]}"


def _number(value: float, unit: Unit) -> str:
    match unit:
        case "s":
            return format_seconds(value)
        case "tokens/s":
            return f"{value:.1f}"
        case "bytes/s" | "FLOP/s":
            return f"{value / 1e9:.1f}"
