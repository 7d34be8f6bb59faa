"""The bodies of requests: which parameters are known, what each may be, and what it asks of the engine.

It takes nothing on trust: a wrong type, an unknown name, or a known one that is not served is refused by name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from trivet.base.errors import RequestError
from trivet.framework.engine.params import MAX_CHOICES, MAX_LOGPROBS, SamplingParams
from trivet.framework.engine.terms import Terms

# OpenAI allows 4. Agent frameworks send up to a dozen; past that every token pays for the scan.
MAX_STOPS = 16
MAX_STOP_CHARS = 1024  # text that may begin a stop string is held back, so its length is a delay
MAX_SALT_CHARS = 1024
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default on /v1/completions; a chat runs to the end of the context


@dataclass(frozen=True)
class Fixed:
    """A known parameter with one meaning here: any value but null and the accepted ones is refused."""

    accepted: tuple[object, ...]
    reason: str


_PLAIN_TEXT = "special tokens are always left out of the text"
_NO_TOOLS = "this server does not call tools"
_TEXT_ONLY = "the model answers in text only"

# Known and without effect: they route, bill or label a request, or promise nothing but speed.
IGNORED = frozenset({
    "store", "metadata", "service_tier", "parallel_tool_calls", "prediction", "safety_identifier",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
})  # fmt: skip

CHAT_FIXED: Mapping[str, Fixed] = {
    "tools": Fixed(([],), _NO_TOOLS),
    "tool_choice": Fixed(("none", "auto"), _NO_TOOLS),
    "functions": Fixed(([],), _NO_TOOLS),
    "function_call": Fixed(("none", "auto"), _NO_TOOLS),
    "response_format": Fixed(({"type": "text"},), "output is not constrained to a format"),
    "modalities": Fixed((["text"],), _TEXT_ONLY),
    "audio": Fixed((), _TEXT_ONLY),
    "verbosity": Fixed(("medium",), "the length of an answer is set by max_completion_tokens"),
    "web_search_options": Fixed((), "this server does not search the web"),
    "moderation": Fixed((), "this server does not moderate"),
    "add_generation_prompt": Fixed((True,), "the answer is always a new turn"),
    "continue_final_message": Fixed((False,), "the answer is always a new turn"),
    "skip_special_tokens": Fixed((True,), _PLAIN_TEXT),
}
COMPLETION_FIXED: Mapping[str, Fixed] = {
    "echo": Fixed((False,), "the prompt is not returned with its completion"),
    "suffix": Fixed(("",), "text is completed at its end only"),
    "add_special_tokens": Fixed((True,), "text prompts begin as the tokenizer says; send token ids to decide yourself"),
    "skip_special_tokens": Fixed((True,), _PLAIN_TEXT),
}


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: the usage so far in every frame
    include_obfuscation: bool | None = None  # padding against traffic analysis: never added here


class Part(msgspec.Struct):
    """A piece of a message's content. Kinds other than text are read only to be named in the refusal."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A turn. The last fields may be there but empty: clients send an answer back as they received it."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Any = None
    function_call: Any = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None


class Body(msgspec.Struct, kw_only=True):
    """A JSON object that an endpoint takes; `FIXED` are the parameters it knows but does not serve."""

    FIXED: ClassVar[Mapping[str, Fixed]] = {}


class GenerationBody(Body, kw_only=True):
    """What chat and completions share. Null means the default, as OpenAI has it."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    ignore_eos: bool | None = None
    user: str | None = None
    priority: int | None = None  # vLLM's: the lower goes first
    timeout_s: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None  # vLLM's: what was computed of a prompt is shared under one salt only

    @property
    def salt(self) -> str:
        """Raises RequestError when it is longer than a salt need be."""
        if self.cache_salt is not None and not 1 <= len(self.cache_salt) <= MAX_SALT_CHARS:
            raise RequestError(f"cache_salt has {len(self.cache_salt)} characters, wanted 1 to {MAX_SALT_CHARS}",
                               parameter="cache_salt")  # fmt: skip
        return self.cache_salt or ""

    @property
    def terms(self) -> Terms:
        """On what terms it is served. The tenant is the `user` it names: there is one API key for all."""
        return Terms(self.user or "", self.priority or 0, self.timeout_s)

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        return self.wants_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)


class ChatBody(GenerationBody, kw_only=True):
    """POST /v1/chat/completions."""

    FIXED: ClassVar[Mapping[str, Fixed]] = CHAT_FIXED

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None  # for chat templates that know it
    chat_template_kwargs: dict[str, Any] | None = None  # vLLM's: such as {"enable_thinking": false}

    def sampling(self) -> SamplingParams:
        """What the engine is asked for; whether each value is in its range is the engine's to say.

        Raises:
            RequestError: two parameters contradict each other, or one is out of a range that only this endpoint has.
        """
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs is set but logprobs is not", "set logprobs to true", "top_logprobs")
        _check_range("top_logprobs", self.top_logprobs, 0, MAX_LOGPROBS)
        _check_range("max_completion_tokens", self.max_completion_tokens, 1, None)
        limit, old_limit = self.max_completion_tokens, self.max_tokens
        if limit is not None and old_limit is not None and limit != old_limit:
            raise RequestError(f"max_completion_tokens is {limit} and max_tokens, its old name, {old_limit}",
                               "set only the first", "max_tokens")  # fmt: skip
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return _sampling(self, max_tokens=old_limit if limit is None else limit, logprobs=logprobs)

    def template_options(self) -> dict[str, Any]:
        """What the request adds to the chat template's variables."""
        options = dict(self.chat_template_kwargs or {})
        for name in ("messages", "tools", "add_generation_prompt", "chat_template"):
            if name in options:
                raise RequestError(f"chat_template_kwargs sets {name}, which is not the request's to set",
                                   parameter="chat_template_kwargs")  # fmt: skip
        if self.reasoning_effort is not None:
            options.setdefault("reasoning_effort", self.reasoning_effort)
        return options


class CompletionBody(GenerationBody, kw_only=True):
    """POST /v1/completions."""

    FIXED: ClassVar[Mapping[str, Fixed]] = COMPLETION_FIXED

    prompt: str | list[Any]  # text, texts, token ids, or lists of token ids
    logprobs: int | None = None
    best_of: int | None = None

    def sampling(self) -> SamplingParams:
        """What the engine is asked for, of every prompt alike.

        Raises:
            RequestError: two parameters contradict each other, or one is out of a range that only this endpoint has.
        """
        if self.best_of not in (None, self.n or 1):
            raise RequestError(f"best_of is {self.best_of} and n is {self.n or 1}: choices are not ranked here",
                               "leave best_of out", "best_of")  # fmt: skip
        limit = DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        return _sampling(self, max_tokens=limit, logprobs=self.logprobs)

    def prompts(self) -> list[str | list[int]]:
        """One text or list of token ids per prompt, in order.

        Raises:
            RequestError: a prompt is empty or of no known kind, or they ask for more than 128 choices in all.
        """
        prompts = self.prompt if _is_list_of_prompts(self.prompt) else [self.prompt]
        num_choices = len(prompts) * (self.n or 1)
        if num_choices > MAX_CHOICES:
            raise RequestError(f"prompt and n ask for {num_choices} choices, at most {MAX_CHOICES} are served at once",
                               "send the prompts in several requests", "prompt")  # fmt: skip
        return [_prompt(prompt, "prompt" if len(prompts) == 1 else f"prompt[{i}]") for i, prompt in enumerate(prompts)]


class TokenizeBody(Body, kw_only=True):
    """POST /tokenize: a text, or a conversation as the model would see it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True


class DetokenizeBody(Body, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]


BodyT = TypeVar("BodyT", bound=Body)


def decode(raw: bytes, kind: type[BodyT]) -> BodyT:
    """`raw` JSON as a body of this kind.

    Raises:
        RequestError: not JSON (with the byte at fault), a wrong type, or a parameter unknown or not served.
    """
    fields = _parse(raw)
    if not isinstance(fields, dict):
        raise RequestError(f"the body is {_json_kind(fields)}, wanted a JSON object")
    _check_names(fields, kind)
    try:
        return msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _misfit(error) from None


def conversation(messages: list[Message]) -> list[dict[str, str]]:
    """The messages as a chat template takes them: role and content, and name or reasoning where given.

    Raises:
        RequestError: there are none, or one is not plain text.
    """
    if not messages:
        raise RequestError("messages is empty", "send at least one message", "messages")
    return [_turn(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _parse(raw: bytes) -> object:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise RequestError("the body is JSON nested too deeply") from None


def _check_names(fields: dict[str, object], kind: type[Body]) -> None:
    served = kind.__struct_fields__
    for name, value in fields.items():
        if name in served or name in IGNORED:
            continue
        fixed = kind.FIXED.get(name)
        if fixed is None:
            known = (*served, *IGNORED, *kind.FIXED)
            nearest = difflib.get_close_matches(name, known, n=1)
            raise RequestError(f"{name} is not a parameter of this endpoint",
                               f"did you mean {nearest[0]}?" if nearest else None, name)  # fmt: skip
        if value is not None and value not in fixed.accepted:
            raise RequestError(f"{name} is not served: {fixed.reason}", f"leave {name} out", name)


def _misfit(error: msgspec.ValidationError) -> RequestError:
    """msgspec's "Expected `int`, got `str` - at `$.messages[0].role`" in our words."""
    absent = re.match(r"Object missing required field `(\w+)`(?: - at `\$\.?(.*)`)?", str(error))
    if absent is not None:
        name = f"{absent[2]}.{absent[1]}" if absent[2] else absent[1]
        return RequestError(f"{name} is required and absent", parameter=name)
    surplus = re.match(r"Object contains unknown field `(.*)` - at `\$\.?(.*)`", str(error))
    if surplus is not None:
        name = f"{surplus[2]}.{surplus[1]}"
        return RequestError(f"{name} is not a known field", f"leave {surplus[1]} out", name)
    reason, _, path = str(error).rpartition(" - at ")
    where = re.search(r"`\$\.?(.*)`", path)
    name = where[1] if where else None
    return RequestError(f"{name or 'the body'}: {reason[:1].lower()}{reason[1:]}", parameter=name)


def _json_kind(value: object) -> str:
    kinds = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")


_SHARED = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
           "logit_bias", "min_tokens", "n", "ignore_eos")  # fmt: skip


def _sampling(body: GenerationBody, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options is set but stream is not", "set stream to true", "stream_options")
    given = {name: value for name in _SHARED if (value := getattr(body, name)) is not None}
    return SamplingParams(
        **given,
        # vLLM's clients write -1, and others 0, for "every token".
        top_k=None if body.top_k in (-1, 0) else body.top_k,
        stop=_stops(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        max_tokens=max_tokens,
        logprobs=logprobs,
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop has {len(stops)} strings, at most {MAX_STOPS} are served", parameter="stop")
    longest = max(map(len, stops), default=0)
    if longest > MAX_STOP_CHARS:
        raise RequestError(f"stop has a string of {longest} characters, at most {MAX_STOP_CHARS} are served",
                           parameter="stop")  # fmt: skip
    return stops


def _turn(message: Message, where: str) -> dict[str, str]:
    if message.role in ("tool", "function") or message.tool_calls or message.function_call or message.tool_call_id:
        raise RequestError(f"{where} belongs to a tool call: {_NO_TOOLS}", parameter=where)
    if message.audio:
        raise RequestError(f"{where}.audio is set: the model reads text only", parameter=f"{where}.audio")
    if message.content is None and message.role != "assistant":
        raise RequestError(f"{where}.content is null, wanted text", parameter=f"{where}.content")
    # `developer` is what newer OpenAI models call the system turn; the templates of open models know `system`.
    turn = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content, f"{where}.content"),
    }
    if message.name is not None:
        turn["name"] = message.name
    if message.reasoning_content is not None:
        turn["reasoning_content"] = message.reasoning_content
    return turn


def _text(content: str | list[Part] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for i, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise RequestError(f"{where}[{i}] is of type {part.type!r}: the model reads parts of type 'text' only",
                               parameter=f"{where}[{i}]")  # fmt: skip
    return "\n".join(part.text or "" for part in content)


def _is_list_of_prompts(prompt: str | list[Any]) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)


def _prompt(prompt: object, where: str) -> str | list[int]:
    if prompt in ("", []):
        raise RequestError(f"{where} is empty", "send some text or at least one token id", "prompt")
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
        raise RequestError(f"{where} is neither text nor a list of token ids", parameter="prompt")
    return prompt


def _check_range(name: str, value: int | None, low: int, high: int | None) -> None:
    if value is None or (low <= value and (high is None or value <= high)):
        return
    wanted = f"{low} to {high}" if high is not None else f"at least {low}"
    raise RequestError(f"{name} is {value}, wanted {wanted}", parameter=name)
