"""One request's answer: its prompts go to the engine, its choices come back as frames or as one body."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from trivet.base.errors import UnavailableError
from trivet.framework.engine.delta import Delta
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.terms import Terms
from trivet.serve.errors import HttpError
from trivet.serve.frames import DONE, Choice, Usage, Writer
from trivet.serve.service import Service


@dataclass
class Tally:
    """What is known of a request as it goes: for its usage, and for its line in the log."""

    usage: Usage
    started_s: float = field(default_factory=time.monotonic)
    first_token_s: float | None = None
    finish_reasons: list[str] = field(default_factory=list)

    def count(self, delta: Delta) -> None:
        if self.first_token_s is None:
            self.first_token_s = time.monotonic()
        self.usage.completion_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self.finish_reasons.append(delta.finish_reason)

    def fields(self) -> dict[str, object]:
        """As the log has them."""
        ttft_ms = None if self.first_token_s is None else (self.first_token_s - self.started_s) * 1e3
        return {
            "prompt_tokens": self.usage.prompt_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "ttft_ms": ttft_ms,
            "finish": ",".join(self.finish_reasons) or None,
        }


class Generation:
    """The choices of all prompts of one request, numbered prompt by prompt.

    Making it submits nothing, but refuses what could not be served.

    Raises:
        RequestError: a prompt or parameter the engine does not take.
        UnavailableError: loading, draining or stopped.
    """

    def __init__(
        self,
        service: Service,
        answer_id: str,
        prompts: list[list[int]],
        params: SamplingParams,
        cache_salt: str,
        terms: Terms,
    ) -> None:
        engine = service.model().engine
        self.tally = Tally(Usage(sum(map(len, prompts))))
        self._service = service
        self._choices_per_prompt = params.n
        self._num_choices = len(prompts) * params.n
        self._streams = [engine.generate(prompt, params, f"{answer_id}-{i}", cache_salt=cache_salt, terms=terms)
                         for i, prompt in enumerate(prompts)]  # fmt: skip

    async def frames(self, writer: Writer, has_usage: bool, has_running_usage: bool) -> AsyncGenerator[bytes, None]:
        """Server-sent frames, the last of them `[DONE]`."""
        running_usage = self.tally.usage if has_running_usage else None
        async with contextlib.aclosing(self._deltas()) as deltas:
            async for index, delta in deltas:
                frame = writer.frame(index, delta.text, delta.logprobs, delta.finish_reason, running_usage)
                if frame:
                    yield frame
        yield (writer.usage_frame(self.tally.usage) if has_usage else b"") + DONE

    async def body(self, writer: Writer, has_logprobs: bool) -> bytes:
        """The whole answer as JSON."""
        choices = [Choice(index) for index in range(self._num_choices)]
        async with contextlib.aclosing(self._deltas()) as deltas:
            async for index, delta in deltas:
                choices[index].text.append(delta.text)
                choices[index].logprobs.extend(delta.logprobs or ())
                choices[index].finish_reason = delta.finish_reason
        return writer.body(choices, self.tally.usage, has_logprobs)

    async def _deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        with self._service.admitted(self._num_choices):
            async with contextlib.aclosing(_merged(self._streams)) as merged:
                async for prompt, delta in merged:
                    self.tally.count(delta)
                    if delta.finish_reason == "error":
                        raise HttpError(500, "engine_failed", "the engine failed on this request")
                    if delta.finish_reason == "timeout":
                        raise HttpError(504, "deadline_exceeded", "the answer was not complete within timeout_s",
                                        "ask for less, or give it longer", "timeout_s")  # fmt: skip
                    if delta.finish_reason == "abort":
                        raise UnavailableError("the answer was cut short by a shutdown", "send the request again")
                    yield prompt * self._choices_per_prompt + delta.index, delta


async def _merged(streams: list[AsyncGenerator[Delta, None]]) -> AsyncGenerator[tuple[int, Delta], None]:
    """The deltas of all streams as they come, each with the number of its stream."""
    if len(streams) == 1:  # the common case, without a task and a queue between engine and socket
        async with contextlib.aclosing(streams[0]) as deltas:
            async for delta in deltas:
                yield 0, delta
        return
    arrived: asyncio.Queue[tuple[int, Delta] | Exception | None] = asyncio.Queue()
    readers = [asyncio.ensure_future(_read(i, stream, arrived)) for i, stream in enumerate(streams)]
    num_open = len(readers)
    try:
        while num_open:
            item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
                continue
            yield item
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(
    number: int, stream: AsyncGenerator[Delta, None], arrived: asyncio.Queue[tuple[int, Delta] | Exception | None]
) -> None:
    try:
        async with contextlib.aclosing(stream) as deltas:
            async for delta in deltas:
                arrived.put_nowait((number, delta))
        arrived.put_nowait(None)
    except Exception as error:
        arrived.put_nowait(error)
