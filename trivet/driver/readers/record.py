"""What a reading of a host asked for: each path, and what the tools printed. Readers note it while somebody records.

Nobody keeps a list of what is read: what a reader learns to read is in the next bundle by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Record:
    # By path from the host's own "/": how many bytes were asked for, 0 where only whether it is there.
    asked: dict[str, int] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)  # what is in no file of the host, by its path in a captured tree


_current: ContextVar[Record | None] = ContextVar("record", default=None)


@contextmanager
def recording() -> Iterator[Record]:
    """All that this thread reads meanwhile."""
    record = Record()
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)


def note(path: str, num_bytes: int = 0) -> None:
    record = _current.get()
    if record is not None:
        record.asked[path] = max(num_bytes, record.asked.get(path, 0))


def keep(path: str, text: str) -> None:
    record = _current.get()
    if record is not None:
        record.kept[path] = text
