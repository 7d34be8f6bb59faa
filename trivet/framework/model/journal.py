"""What of a conversion is complete, in order: a file of one line each, so that a killed one continues where it was.

A line counts when it is whole. It refuses to keep what follows a line that no longer holds.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any


class Journal:
    """The lines of `path`, gone through again from the first: what is recorded equally stays, the rest is dropped."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b")
        self._file.seek(0)
        self._lines = self._file.read().splitlines(keepends=True)
        self._num_agreed = 0

    @property
    def names(self) -> list[str]:
        """Of everything that is recorded."""
        return [found[0] for found in map(_parsed, self._lines) if found is not None]

    def recall(self, name: str) -> Any | None:
        """What the next line says was made by `name`; None when it speaks of something else, or is torn."""
        found = _parsed(self._lines[self._num_agreed]) if self._num_agreed < len(self._lines) else None
        return found[1] if found is not None and found[0] == name else None

    def record(self, name: str, made: Any) -> None:
        """`name` is complete and made this. On disk when the call returns."""
        line = json.dumps([name, made]).encode() + b"\n"
        if self._lines[self._num_agreed : self._num_agreed + 1] != [line]:
            del self._lines[self._num_agreed :]
            self._file.truncate(sum(map(len, self._lines)))  # in append mode, what is written next goes to the end
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._lines.append(line)
        self._num_agreed += 1

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _parsed(line: bytes) -> tuple[str, Any] | None:
    """Who made what; None when the line is torn or damaged."""
    try:
        name, made = json.loads(line)
    except (ValueError, TypeError):
        return None
    return (name, made) if line.endswith(b"\n") and isinstance(name, str) else None
