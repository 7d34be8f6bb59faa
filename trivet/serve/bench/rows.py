"""Figures as rows: one flat dict each, with the circumstances it was taken under, and CSV files that grow by them."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from trivet.base.errors import TrivetError
from trivet.serve.bench.figure import Figure
from trivet.serve.bench.stamp import Stamp

Row = dict[str, Any]

COLUMNS = tuple(each.name for part in (Figure, Stamp) for each in fields(part))


def to_row(figure: Figure, stamp: Stamp) -> Row:
    return {**asdict(figure), **asdict(stamp)}


def check_csv(file: Path, columns: Sequence[str] = COLUMNS) -> None:
    """Raise TrivetError unless such rows can be appended to the file: asked before measuring for minutes."""
    if not os.access(file if file.exists() else file.parent, os.W_OK) or file.is_dir():
        raise TrivetError(f"{file}: cannot be written to", "name a file in a folder that exists and is yours")
    if not file.exists() or file.stat().st_size == 0:
        return
    with file.open(newline="") as opened:
        found = next(csv.reader(opened))
    if found != list(columns):
        raise TrivetError(f"{file}: its columns are not those of these rows", "move it away, or name another file")


def append_csv(file: Path, rows: Sequence[Row]) -> None:
    """Append rows of figures. Raises TrivetError as `check_csv` does."""
    append_rows(file, [{**row, "settings": format_settings(row["settings"])} for row in rows], COLUMNS)


def append_rows(file: Path, rows: Sequence[Row], columns: Sequence[str] | None = None) -> None:
    """Append rows of any kind; a new file gets the names of its columns first. None is an empty field.

    The columns are those of the first row unless given. Raises TrivetError as `check_csv` does.
    """
    columns = columns or list(rows[0])
    check_csv(file, columns)
    with file.open("a", newline="") as opened:
        writer = csv.DictWriter(opened, columns)
        if opened.tell() == 0:
            writer.writeheader()
        writer.writerows(rows)


def format_settings(settings: Mapping[str, str | int | float | None]) -> str:
    """`batch=8 through=plan`; what is unknown is left out."""
    return " ".join(f"{key}={value}" for key, value in settings.items() if value is not None)
