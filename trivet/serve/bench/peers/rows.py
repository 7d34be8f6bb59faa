"""Ratios in CSV files that grow by them, each row with the circumstances it was measured under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trivet.serve.bench.rows import append_rows
from trivet.serve.bench.stamp import Stamp

_OF_ANOTHER = ("model", "dtype")  # a stamp's words for one model at one format; here each row says its own


def append(file: Path, rows: Sequence[Mapping[str, Any]], circumstances: Stamp) -> None:
    """Append the rows. Raises TrivetError where the file has others."""
    told = {key: value for key, value in asdict(circumstances).items() if key not in _OF_ANOTHER}
    if rows:
        append_rows(file, [{**row, **told} for row in rows])
