"""JSON documents on disk, read with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trivet.base.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file; CheckpointError when it is absent, cannot be read, is not JSON, or not an object."""
    try:
        text = path.read_bytes().decode()
        document = json.loads(text)
        if r"\ud" in text or r"\uD" in text:  # half a pair of UTF-16, which no file and no tokenizer could be given
            json.dumps(document, ensure_ascii=False).encode()
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing", "copy the model again, with all its files") from None
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}", "check who may read it, and the disk"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable as JSON: {error}", "copy the file again") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} holds a JSON {type(document).__name__}, an object was wanted")
    return document


def write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
