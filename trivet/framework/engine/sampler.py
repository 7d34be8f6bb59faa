"""What a sequence asks of the native sampler, and what it gets: a token is a function of its row of logits, the tokens
before it, the parameters and the seed.

Nothing here remembers a draw. The random number of a token comes from a counter-based generator keyed by (seed,
choice) at the token's position, so neither the batch, a preemption nor a restart can change it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Several
from typing import NamedTuple

import numpy as np

from trivet._native import Draw, Sampler
from trivet.base.dtypes import Array
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import Sequence


class TokenLogprob(NamedTuple):
    """Natural log-probabilities under the model's own distribution: raw logits, before penalties and temperature."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # the likeliest (token, logprob), descending, ties by id


class Choices(NamedTuple):
    """What was chosen from rows of logits."""

    tokens: Array  # int32 [rows]
    logprobs: dict[int, TokenLogprob]  # by row, of those that asked
    unfit: list[int]  # rows that gave none, having NaN, +inf or nothing finite; what `tokens` says of them is nothing


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


def choose(sampler: Sampler, logits: Array, sequences: Several[Sequence]) -> Choices:
    """The next token of each sequence from its row of `logits` [rows, vocab] float32. Ties go to the lowest id."""
    if not sequences:  # logits of no rows may have any strides, and PyTorch's have none
        return Choices(np.zeros(0, np.int32), {}, [])
    tokens, logprobs, unfit = sampler.choose(
        logits,
        [sequence.draw for sequence in sequences],
        [len(sequence.tokens) for sequence in sequences],
        [
            (row, sequence.tokens.buffer_info()[0])
            for row, sequence in enumerate(sequences)
            if sequence.draw.reads_tokens
        ],
    )
    told = {row: TokenLogprob(int(tokens[row]), logprob, tuple(top)) for row, logprob, top in logprobs}
    return Choices(tokens, told, unfit)
