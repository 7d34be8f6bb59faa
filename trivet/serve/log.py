"""The log of a running server: one line per event, `key=value`, on stderr. Ids and counts, never text of a prompt."""

from __future__ import annotations

import json
import logging
import re
import sys
import time

_BARE = re.compile(r"[\w.,/:@+-]+", re.ASCII)


def event(name: str, **fields: object) -> str:
    """`event=name key=value …`; fields that are None are left out, and a value that could break the line is quoted."""
    pairs = (f"{key}={_value(value)}" for key, value in fields.items() if value is not None)
    return " ".join((f"event={name}", *pairs))


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send the server's log to stderr. A program that embeds the server sets up its own logging instead."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter("time=%(asctime)s.%(msecs)03dZ level=%(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    for name, floor in (("trivet", level), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(floor)


def _value(value: object) -> str:
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)
