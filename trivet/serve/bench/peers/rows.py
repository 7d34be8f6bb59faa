"""Ratios in CSV files that grow by them, each row with the circumstances it was measured under."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trivet.base.errors import TrivetError
from trivet.serve.bench.stamp import Stamp

_OF_ANOTHER = ("model", "dtype")  # a stamp's words for one model at one format; here each row says its own


def append(file: Path, rows: Sequence[Mapping[str, Any]], circumstances: Stamp) -> None:
    """Append the rows; a new file gets the names of its columns first. Raises TrivetError where they are others."""
    told = {key: value for key, value in asdict(circumstances).items() if key not in _OF_ANOTHER}
    whole = [{**row, **told} for row in rows]
    if not whole:
        return
    columns = list(whole[0])
    if file.exists() and file.stat().st_size > 0:
        with file.open(newline="") as opened:
            if next(csv.reader(opened)) != columns:
                raise TrivetError(
                    f"{file}: its columns are not those of these rows", "move it away, or name another file"
                )
    with file.open("a", newline="") as opened:
        writer = csv.DictWriter(opened, columns)
        if opened.tell() == 0:
            writer.writeheader()
        writer.writerows(whole)
