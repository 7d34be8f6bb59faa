"""A client of an OpenAI server that times what it hears: each request at its time, whatever the others wait for."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httptools

from trivet.framework.engine.replay.trace import Arrival

_PIECE_BYTES = 1 << 16


@dataclass
class Heard:
    """When a request was sent, and each piece of its answer came; seconds of one clock. `failure` says why it has no
    end."""

    sent_s: float
    pieces_s: list[float] = field(default_factory=list)
    failure: str | None = None

    @property
    def ttft_s(self) -> float:
        return self.pieces_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.pieces_s, self.pieces_s[1:], strict=False)]


async def ask_all(port: int, model: str, arrivals: Sequence[Arrival], prompts: Sequence[Sequence[int]]) -> list[Heard]:
    """Send every request when it arrives, and hear all to their ends. A failure is in what was heard, not raised."""
    start_s = time.perf_counter()

    async def ask(arrival: Arrival, prompt: Sequence[int]) -> Heard:
        body = {"model": model, "prompt": list(prompt), "max_tokens": arrival.num_answer, "temperature": 0,
                "ignore_eos": True, "stream": True}  # fmt: skip
        await asyncio.sleep(start_s + arrival.at_s - time.perf_counter())
        return await _ask(port, json.dumps(body).encode())

    return await asyncio.gather(*map(ask, arrivals, prompts))


async def _ask(port: int, body: bytes) -> Heard:
    heard = Heard(time.perf_counter())
    reply = _Reply(heard)
    parser = httptools.HttpResponseParser(reply)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        while received := await reader.read(_PIECE_BYTES):
            parser.feed_data(received)
        writer.close()
    except (OSError, httptools.HttpParserError) as error:
        heard.failure = repr(error)
    if heard.failure is None and not reply.is_done:
        heard.failure = f"status {parser.get_status_code()}: {reply.unread[:200].decode(errors='replace')}"
    return heard


class _Reply:
    """Server-sent events out of a body that comes in any pieces."""

    def __init__(self, heard: Heard) -> None:
        self.unread = b""
        self.is_done = False
        self._heard = heard

    def on_body(self, body: bytes) -> None:
        now_s = time.perf_counter()
        *lines, self.unread = (self.unread + body).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            if line.strip().endswith(b"[DONE]"):
                self.is_done = True
            elif _has_tokens(json.loads(line[5:])):
                self._heard.pieces_s.append(now_s)


def _has_tokens(event: dict[str, Any]) -> bool:
    """Not the frame that only says how it ended, nor one of usage. A token may have no text that can be shown yet."""
    return any(choice.get("finish_reason") is None or choice.get("text") for choice in event.get("choices", ()))
