"""A model in this process, for scripts: prompts in, whole answers out. For a service, see `AsyncEngine`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from numbers import Integral
from pathlib import Path
from typing import Any

from trivet.base.errors import RequestError
from trivet.framework.engine.delta import Delta
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.lane_choice import AskedLanes, choose_lanes
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sampler import TokenLogprob
from trivet.framework.engine.sequence import FinishReason, new_request
from trivet.framework.model.loader import LoadedModel, load

Message = Mapping[str, Any]  # {"role": …, "content": …}
Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Answer:
    """One choice, whole. `token_ids` include the token that stopped it, `text` does not."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None  # one for each of token_ids; None when not asked for
    finish_reason: FinishReason
    stop_reason: int | str | None


@dataclass(frozen=True)
class Completion:
    """What became of one prompt: `n` answers."""

    prompt_ids: tuple[int, ...]
    answers: tuple[Answer, ...]

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.answers[0].text


class LLM:
    """`LLM("path/to/model").generate("Once", SamplingParams(max_tokens=20))[0].text`

    `model` is a package, a Hugging Face folder, a GGUF file, or a model that is loaded already. `options` are those
    of `trivet.framework.model.loader.load`. `lanes` "2" has prefill run beside decodes, on cores of its own; "auto"
    measures which is better. Not for use from several threads.
    """

    def __init__(self, model: str | Path | LoadedModel, *, lanes: AskedLanes = "1", **options: Any) -> None:
        loaded = load(model, **options) if isinstance(model, str | Path) else model
        self._tokenizer = loaded.tokenizer
        self._chat_template = loaded.chat_template
        bound, _ = choose_lanes(loaded.plan, loaded.device.cpus, lanes)
        self._engine = Engine(loaded.plan, loaded.tokenizer, lanes=bound, tiers=loaded.tiers)
        self._numbers = count()

    def close(self) -> None:
        """Bring what the KV tiers keep to disk and give their memory back. Without tiers there is nothing to close."""
        self._engine.close()

    def pin(self, prompt: Prompt) -> int:
        """Compute the prompt now, and keep what it fills of slots for all that begin with it; how many slots that is.

        Raises ResourceError when it fills none, or the pinned would fill more than half of the KV pool.
        """
        return self._engine.pin(self._encode(prompt))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] = SamplingParams(),  # noqa: B008, it is frozen
    ) -> list[Completion]:
        """A completion for each prompt, in their order; all run as one batch.

        A prompt is a text or a list of token ids, and not empty; `params` are one for all, or one for each. Raises
        RequestError before anything runs when one of them cannot be served.
        """
        listed: list[Prompt] = [prompts] if _is_one(prompts) else list(prompts)  # type: ignore[list-item, arg-type]
        return self._complete([self._encode(prompt) for prompt in listed], params)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] = SamplingParams(),  # noqa: B008, it is frozen
        **variables: Any,
    ) -> list[Completion]:
        """A completion for each conversation; one conversation may be given bare. `variables` go to the template.

        Raises RequestError as `generate` does, and for a conversation of no messages.
        """
        is_bare = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Any = [messages] if is_bare else messages
        if not all(conversations):
            raise RequestError("messages is empty", "give at least one message", "messages")
        texts = [self._chat_template.render(conversation, **variables) for conversation in conversations]
        # The template has written the special tokens already.
        return self._complete([self._tokenizer.encode(text, add_special=False) for text in texts], params)

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        if not isinstance(prompt, str):
            return prompt
        if not prompt:  # with the token that begins a text it would not be
            raise RequestError("prompt is empty", "give some text, or at least one token id", "prompt")
        return self._tokenizer.encode(prompt, add_special=True)

    def _complete(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Completion]:
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise RequestError(f"params has {len(each)} items for {len(prompts)} prompts, wanted one for each or one")
        requests = [
            new_request(f"prompt-{next(self._numbers)}", prompt, one) for prompt, one in zip(prompts, each, strict=True)
        ]
        for request in requests:
            self._engine.validate(request)
        deltas: dict[tuple[str, int], list[Delta]] = defaultdict(list)
        try:
            for request in requests:
                self._engine.add(request)
            while self._engine.has_work:
                for delta in self._engine.step():
                    deltas[delta.request_id, delta.index].append(delta)
        finally:
            self._engine.abort_all()
        return [
            Completion(
                prompt_ids=request.prompt,
                answers=tuple(_answer(deltas[request.request_id, index]) for index in range(request.params.n)),
            )
            for request in requests
        ]


def _is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral))


def _answer(deltas: list[Delta]) -> Answer:
    last = deltas[-1]
    assert last.finish_reason is not None, "an answer ends with a reason"
    logprobs = tuple(logprob for delta in deltas for logprob in delta.logprobs or ())
    return Answer(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=logprobs if any(delta.logprobs is not None for delta in deltas) else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )
