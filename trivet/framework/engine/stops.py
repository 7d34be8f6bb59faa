"""Where streamed text ends: before the first stop string. Text that may yet become one is held back.

The answer depends on the text, not on how it was cut into tokens: the stop string that is complete first wins, and
of two complete at the same character the longer.
"""

from __future__ import annotations


class StopMatcher:
    """Feed it text with `push`; what it returns may be shown, and nothing may follow once a stop string matched."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that may be shown now, and the stop string that ends it, or None to go on."""
        text = self._held + text
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if found:
            end, _, stop = min(found)
            self._held = ""
            return text[: end - len(stop)], stop
        shown = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[shown:]
        return text[:shown], None

    def flush(self) -> str:
        """The text still held back, once no more can come."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with, `stop` itself left out."""
    longest = min(len(stop) - 1, len(text))
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
