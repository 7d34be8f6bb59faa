"""What a request may ask of sampling, in OpenAI's words and ranges, and the fields the field added to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trivet.base.errors import RequestError

MAX_LOGPROBS = 20
MAX_CHOICES = 128
INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop. Frozen: share it between requests."""

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0  # keep the likeliest tokens that together reach this probability
    top_k: int | None = None  # keep this many of the likeliest tokens
    min_p: float = 0.0  # keep tokens at least this likely, as a share of the likeliest
    repetition_penalty: float = (
        1.0  # divides (positive) or multiplies (negative) logits of tokens seen, prompt included
    )
    presence_penalty: float = 0.0  # subtracted once from logits of tokens generated before
    frequency_penalty: float = 0.0  # subtracted for each time a token was generated before
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token → added to its logit
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    stop_token_ids: tuple[int, ...] = ()  # finish like the end-of-text token
    seed: int | None = None  # None: drawn when the request arrives
    max_tokens: int | None = None  # None: to the end of the context
    min_tokens: int = 0  # neither an end-of-text token nor a stop token before this many
    logprobs: int | None = None  # None: none; n: of the chosen token and the n likeliest
    n: int = 1  # answers per prompt
    ignore_eos: bool = False  # an end-of-text token is a token like any other

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    def validated(self, vocab_size: int) -> SamplingParams:
        """These parameters, or a RequestError that names the first one at fault, and its range."""
        for bounds in _RANGES:
            bounds.check(getattr(self, bounds.parameter))
        if isinstance(self.stop, str) or not all(isinstance(text, str) and text for text in self.stop):
            raise RequestError(f"stop is {self.stop!r}, not a tuple of strings that are not empty", parameter="stop")
        _check_tokens("stop_token_ids", self.stop_token_ids, vocab_size)
        _check_tokens("logit_bias", tuple(self.logit_bias), vocab_size)
        for bias in self.logit_bias.values():
            _BIAS.check(bias)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens is {self.min_tokens}, above max_tokens {self.max_tokens}",
                               parameter="min_tokens")  # fmt: skip
        return self


@dataclass(frozen=True)
class _Range:
    """What a parameter may be; both ends belong to it, where not said otherwise."""

    parameter: str
    kind: type[int] | type[float]
    low: float
    high: float
    is_low_open: bool = False
    is_optional: bool = False

    def check(self, value: object) -> None:
        if value is None and self.is_optional:
            return
        kinds = (int,) if self.kind is int else (int, float)
        # A bool is an int to Python and a mistake to everyone else. NaN fails both comparisons.
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        if not is_number or not self._holds(value):
            raise RequestError(f"{self.parameter} is {value!r}, wanted {self}", parameter=self.parameter)

    def _holds(self, value: object) -> bool:
        assert isinstance(value, int | float)
        is_above = self.low < value if self.is_low_open else self.low <= value
        return is_above and value <= self.high

    def __str__(self) -> str:
        noun = "an integer" if self.kind is int else "a number"
        low = f"above {self.low:g}" if self.is_low_open else f"from {self.low:g}"
        if self.high >= INT64_MAX:
            return f"{noun} of 64 bits" if self.low < 0 else f"{noun} {low}"
        return f"{noun} {low} to {self.high:g}"


_RANGES = (
    _Range("temperature", float, 0, 2),
    _Range("top_p", float, 0, 1, is_low_open=True),
    _Range("top_k", int, 1, INT64_MAX, is_optional=True),
    _Range("min_p", float, 0, 1),
    # Nearer to 0 it would make an infinity of a logit, which is no answer; both ends are far past any use.
    _Range("repetition_penalty", float, 0.01, 100),
    _Range("presence_penalty", float, -2, 2),
    _Range("frequency_penalty", float, -2, 2),
    _Range("seed", int, -INT64_MAX - 1, INT64_MAX, is_optional=True),
    _Range("max_tokens", int, 1, INT64_MAX, is_optional=True),
    _Range("min_tokens", int, 0, INT64_MAX),
    _Range("logprobs", int, 0, MAX_LOGPROBS, is_optional=True),
    _Range("n", int, 1, MAX_CHOICES),
)
_BIAS = _Range("logit_bias", float, -100, 100)


def _check_tokens(parameter: str, tokens: tuple[int, ...], vocab_size: int) -> None:
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
            raise RequestError(f"{parameter} names token {token!r}, wanted an integer from 0 to {vocab_size - 1}",
                               parameter=parameter)  # fmt: skip
