"""The text of one sequence: token ids in, the text that may be shown out."""

from __future__ import annotations

from typing import Protocol

from trivet.framework.engine.stops import StopMatcher


class TokenStream(Protocol):
    """Decodes one sequence token by token; holds back bytes that do not yet make a character."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class StreamingTokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def stream(self) -> TokenStream: ...


class TextOutput:
    """Decodes tokens and ends the text before a stop string."""

    def __init__(self, stream: TokenStream, stops: tuple[str, ...]) -> None:
        self._stream = stream
        self._has_stops = bool(stops)
        self._matcher = StopMatcher(stops)

    def push(self, token_id: int, may_stop: bool) -> tuple[str, str | None]:
        """The text to show after this token, and the stop string that ends it, or None.

        While `may_stop` is false, text passes unexamined.
        """
        text = self._stream.push(token_id)
        return self._matcher.push(text) if may_stop and self._has_stops else (text, None)

    def finish(self) -> tuple[str, str | None]:
        """The rest of the text when no token follows, and the stop string that still ended it, or None."""
        text, stop = self._matcher.push(self._stream.flush())
        return (text + self._matcher.flush(), None) if stop is None else (text, stop)
