"""A request as it was asked, and the sequences in progress that answer it: one for each of its `n` choices."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Literal

from trivet._native import Draw
from trivet.base.errors import RequestError
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.terms import DEFAULT_TERMS, Terms
from trivet.framework.engine.text import TextOutput
from trivet.framework.memory.chain import Chain
from trivet.framework.memory.tiers import Fetch

FinishReason = Literal["stop", "length", "timeout", "abort", "error"]


@dataclass(frozen=True)
class Request:
    """What was asked. `seed` is the one in `params`, or the one drawn for it: answers are reproducible from here on."""

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    cache_salt: str = ""  # only requests of one salt share what was computed of their prompts
    terms: Terms = DEFAULT_TERMS

    def check(self, vocab_size: int, max_context: int, max_length: int, *, has_tokenizer: bool) -> None:
        """Raise RequestError where this can never be served. A sequence has at most `max_length` tokens, which is
        `max_context` or, where that is less, what the KV pool holds."""
        self.params.validated(vocab_size)
        self.terms.validated()
        num_prompt = len(self.prompt)
        if num_prompt == 0:
            raise RequestError("prompt is empty, wanted at least one token", parameter="prompt")
        if num_prompt + 1 > max_length:
            bound, option = f"the context of {max_context} is too short", "--max-context"
            if num_prompt + 1 <= max_context:
                bound, option = f"the KV pool of {max_length} is too small", "--kv-memory"
            message = f"prompt has {num_prompt} tokens; with one to answer, {bound}"
            raise RequestError(message, f"shorten the prompt, or raise {option}", "prompt")
        try:
            tokens = array("i", self.prompt)
        except (TypeError, OverflowError) as error:
            raise RequestError(f"prompt has what is no token id: {error}", parameter="prompt") from None
        if not 0 <= min(tokens) <= max(tokens) < vocab_size:
            raise RequestError(f"prompt has a token outside 0 to {vocab_size - 1}", parameter="prompt")
        if self.params.stop and not has_tokenizer:
            raise RequestError("stop needs a tokenizer, and this engine has none", "use stop_token_ids", "stop")


def new_request(
    request_id: str,
    prompt: Tokens[int],
    params: SamplingParams,
    cache_salt: str = "",
    terms: Terms = DEFAULT_TERMS,
) -> Request:
    """A request as it arrives. Without a seed it gets a random one of 63 bits."""
    seed = secrets.randbits(63) if params.seed is None else params.seed
    return Request(request_id, tuple(prompt), params, seed, cache_salt, terms)


@dataclass(eq=False, slots=True)
class Sequence:
    """One answer in progress. Everything up to `num_computed` is in its slots; the rest is to be computed.

    `tokens` and `slots` are arrays of C ints: a step copies them into its batch without a loop.
    """

    request: Request
    index: int  # which of the request's n choices
    order: int  # by arrival, unique
    max_length: int  # tokens, prompt included, at which it finishes
    stop_ids: frozenset[int]  # tokens that finish it
    draw: Draw  # how its tokens are chosen
    text: TextOutput | None  # None without a tokenizer
    arrival_s: float
    num_prompt: int = field(init=False)
    tokens: array[int] = field(init=False)
    slots: array[int] = field(default_factory=lambda: array("i"))
    num_computed: int = 0
    num_named: int = 0  # its first slots, full and to be found by others; those it shares are among them
    chain: Chain | None = None  # the names of its full blocks, once somebody asked
    fetch: Fetch | None = None  # what it waits for, of its prefix
    is_expected: bool = False  # it was asked what files have of it, since it arrived or stepped back
    place: int | None = None  # in the line of those whose turn has come; the newest steps back first
    row: int | None = None  # among those that decode
    scheduled_s: float | None = None  # when it first ran
    first_token_s: float | None = None
    last_token_s: float | None = None

    def __post_init__(self) -> None:
        self.tokens = array("i", self.request.prompt)
        self.num_prompt = len(self.tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens not computed yet: 1 while decoding, more before or after a preemption."""
        return len(self.tokens) - self.num_computed
