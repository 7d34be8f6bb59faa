"""Answers as OpenAI's clients read them: server-sent frames written by hand, and whole bodies.

What the frames of a request share is encoded once; of each token only its text is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from trivet import __version__
from trivet.framework.engine.sampler import TokenLogprob
from trivet.framework.model.tokenizer import Tokenizer
from trivet.serve.logprobs import chat_logprobs, completion_logprobs

DONE = b"data: [DONE]\n\n"
SYSTEM_FINGERPRINT = f"trivet-{__version__}"

_encode = msgspec.json.encode


@dataclass
class Usage:
    """Tokens of a request, over all its prompts and choices."""

    prompt_tokens: int
    completion_tokens: int = 0

    def fields(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass
class Choice:
    """One answer as far as it has come."""

    index: int
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(frozen=True)
class Heading:
    """What every frame and body of a request begins with."""

    answer_id: str
    created: int  # seconds since 1970
    model: str

    def fields(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }


class Writer(Protocol):
    """How an endpoint writes answers."""

    def frame(self, index: int, text: str, logprobs: Sequence[TokenLogprob] | None, finish_reason: str | None,
              usage: Usage | None = None) -> bytes:  # fmt: skip
        """The frames of one step of one choice: none where there is nothing to say yet."""
        ...

    def usage_frame(self, usage: Usage) -> bytes:
        """The last frame before `[DONE]`, if usage was asked for."""
        ...

    def body(self, choices: list[Choice], usage: Usage, has_logprobs: bool) -> bytes:
        """The whole answer at once."""
        ...


class ChatWriter:
    """chat.completion and chat.completion.chunk."""

    def __init__(self, heading: Heading, tokenizer: Tokenizer, has_usage: bool = False) -> None:
        self._heading = heading
        self._tokenizer = tokenizer
        self._head, self._tail = _ends(heading.fields("chat.completion.chunk"), has_usage)
        self._opened: set[int] = set()

    def frame(self, index: int, text: str, logprobs: Sequence[TokenLogprob] | None, finish_reason: str | None,
              usage: Usage | None = None) -> bytes:  # fmt: skip
        tail = self._tail if usage is None else _tail(usage)
        frames = b""
        if index not in self._opened:
            self._opened.add(index)
            frames = b'%b%d,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,' \
                     b'"finish_reason":null%b' % (self._head, index, tail)  # fmt: skip
        if text or logprobs:
            shaped = b"null" if logprobs is None else _encode(chat_logprobs(logprobs, self._tokenizer))
            frames += b'%b%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null%b' % (
                self._head, index, _encode(text), shaped, tail,
            )  # fmt: skip
        if finish_reason is not None:
            frames += b'%b%d,"delta":{},"logprobs":null,"finish_reason":"%b"%b' % (
                self._head, index, finish_reason.encode(), tail,
            )  # fmt: skip
        return frames

    def usage_frame(self, usage: Usage) -> bytes:
        return _usage_frame(self._heading.fields("chat.completion.chunk"), usage)

    def body(self, choices: list[Choice], usage: Usage, has_logprobs: bool) -> bytes:
        return _body(self._heading.fields("chat.completion"), usage, [
            {
                "index": choice.index,
                "message": {
                    "role": "assistant",
                    "content": "".join(choice.text),
                    "refusal": None,
                    "annotations": [],
                },
                "logprobs": chat_logprobs(choice.logprobs, self._tokenizer) if has_logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for choice in choices
        ])  # fmt: skip


class CompletionWriter:
    """text_completion, of which the frames are the body's shape again."""

    def __init__(self, heading: Heading, tokenizer: Tokenizer, has_usage: bool = False) -> None:
        self._fields = heading.fields("text_completion")
        self._tokenizer = tokenizer
        self._head, self._tail = _ends(self._fields, has_usage)
        self._offsets: dict[int, int] = {}  # of each choice: characters of the tokens framed so far

    def frame(self, index: int, text: str, logprobs: Sequence[TokenLogprob] | None, finish_reason: str | None,
              usage: Usage | None = None) -> bytes:  # fmt: skip
        if not (text or logprobs or finish_reason):
            return b""
        return b'%b%d,"text":%b,"logprobs":%b,"finish_reason":%b%b' % (
            self._head,
            index,
            _encode(text),
            b"null" if logprobs is None else self._logprobs(index, logprobs),
            b"null" if finish_reason is None else b'"%b"' % finish_reason.encode(),
            self._tail if usage is None else _tail(usage),
        )

    def usage_frame(self, usage: Usage) -> bytes:
        return _usage_frame(self._fields, usage)

    def body(self, choices: list[Choice], usage: Usage, has_logprobs: bool) -> bytes:
        return _body(self._fields, usage, [
            {
                "index": choice.index,
                "text": "".join(choice.text),
                "logprobs": completion_logprobs(choice.logprobs, self._tokenizer, 0) if has_logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for choice in choices
        ])  # fmt: skip

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> bytes:
        offset = self._offsets.get(index, 0)
        shaped = completion_logprobs(logprobs, self._tokenizer, offset)
        self._offsets[index] = offset + sum(map(len, shaped["tokens"]))
        return _encode(shaped)


def _ends(fields: dict[str, Any], has_usage: bool) -> tuple[bytes, bytes]:
    """What stands before and after a choice. With usage asked for, OpenAI has a null in every frame but the last."""
    head = b"data: " + _encode(fields)[:-1] + b',"choices":[{"index":'
    return head, b'}],"usage":null}\n\n' if has_usage else b"}]}\n\n"


def _tail(usage: Usage) -> bytes:
    return b'}],"usage":%b}\n\n' % _encode(usage.fields())


def _usage_frame(fields: dict[str, Any], usage: Usage) -> bytes:
    return b"data: %b\n\n" % _encode(fields | {"choices": [], "usage": usage.fields()})


def _body(fields: dict[str, Any], usage: Usage, choices: list[dict[str, Any]]) -> bytes:
    return _encode(fields | {"choices": choices, "usage": usage.fields()})
