"""What a sequence asks of the native sampler, and what it gets: a token is a function of its row of logits, the tokens
before it, the parameters and the seed.

Nothing here remembers a draw. The random number of a token comes from a counter-based generator keyed by (seed,
choice) at the token's position, so neither the batch, a preemption nor a restart can change it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from trivet._native import Draw, Sampler
from trivet.base.dtypes import Array
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import Sequence


class TokenLogprob(NamedTuple):
    """Natural log-probabilities under the model's own distribution: raw logits, before penalties and temperature."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # the likeliest (token, logprob), descending, ties by id


class Choice(NamedTuple):
    token_id: int
    logprob: TokenLogprob | None


def to_draw(params: SamplingParams, num_prompt: int, seed: int, choice: int, stop_ids: Iterable[int]) -> Draw:
    """The parameters as the native sampler takes them, for the `choice`-th of a request's n."""
    return Draw(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=list(params.logit_bias.items()),
        stop_ids=sorted(stop_ids),
        min_tokens=params.min_tokens,
        num_prompt=num_prompt,
        num_logprobs=params.logprobs,
        seed=seed % 2**64,
        choice=choice,
    )


def choose(sampler: Sampler, logits: Array, sequences: Iterable[Sequence]) -> list[Choice | None]:
    """The next token of each sequence from its row of `logits` [rows, vocab] float32; None for a row that has NaN,
    +inf or nothing finite. Ties go to the lowest id."""
    rows = [(sequence.draw, *sequence.tokens.buffer_info()) for sequence in sequences]
    if not rows:  # logits of no rows may have any strides, and PyTorch's have none
        return []
    return [to_choice(chosen) for chosen in sampler.choose(logits, rows)]


def to_choice(chosen: tuple[int, float | None, list[tuple[int, float]]] | None) -> Choice | None:
    """What the native sampler says of a row."""
    if chosen is None:
        return None
    token_id, logprob, top = chosen
    return Choice(token_id, None if logprob is None else TokenLogprob(token_id, logprob, tuple(top)))
