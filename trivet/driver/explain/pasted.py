"""Where the text comes from that is to be explained: a file, standard input, or the argument itself. Bounded."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from trivet.base.errors import ConfigError
from trivet.base.units import format_bytes

# The first error of a longer log is cut out of it beforehand. Of this much the worst text takes some seconds.
MAX_BYTES = 4 << 20
MAX_LINES = 100_000
_CUT = f"only the first {format_bytes(MAX_BYTES)} and {MAX_LINES} lines were read; give the part with the first error"
_SUFFIXES = (".log", ".txt", ".out", ".err", ".json")


def read_pasted(source: str, standard_input: BinaryIO, option: str = "explain") -> tuple[str, str | None]:
    """The text, and a sentence where only its beginning was read. `-` is standard input, a name of a file is the file.

    Raises ConfigError where a file cannot be read, or there is nothing to explain.
    """
    if source == "-":
        data = standard_input.read(MAX_BYTES + 1)
    elif _is_there(source):
        data = _read(Path(source), option)
    elif _is_like_a_path(source):
        raise ConfigError(f"{option}: {source} does not exist", "give a file, a text, or - for standard input")
    else:
        data = source.encode(errors="replace")
    text = data[:MAX_BYTES].decode("utf-8", errors="replace")
    if not text.strip():
        raise ConfigError(f"{option}: the text is empty", "give a log, a traceback or the output of npu-smi info")
    rows = text.split("\n", MAX_LINES)
    is_cut = len(data) > MAX_BYTES or len(rows) > MAX_LINES
    return "\n".join(rows[:MAX_LINES]), _CUT if is_cut else None


def _read(path: Path, option: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be read: {error.strerror}", "name one file of a log") from error


def _is_there(source: str) -> bool:
    try:
        return bool(source) and Path(source).exists()
    except (OSError, ValueError):  # a text: too long for a name, or with a NUL
        return False


def _is_like_a_path(source: str) -> bool:
    return not any(each.isspace() for each in source) and ("/" in source or source.endswith(_SUFFIXES))
