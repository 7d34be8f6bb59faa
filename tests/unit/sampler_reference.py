"""The slow truth of sampling: one row in NumPy, in double precision, with full sorts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np

from trivet.base.dtypes import Array
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sampler import TokenLogprob


class Choice(NamedTuple):
    token_id: int
    logprob: TokenLogprob | None


class Draw(NamedTuple):
    """All that the choice of one token depends on, beside its logits."""

    params: SamplingParams
    tokens: Sequence[int]  # all before it, the prompt included
    num_prompt: int
    seed: int
    choice: int  # which of the request's n
    stop_ids: frozenset[int]


def uniform(seed: int, choice: int, position: int, attempt: int = 0) -> float:
    """The number in [0, 1) that belongs to this place: Philox keyed by (seed, choice), counter at `position`, its upper
    half at `attempt`."""
    key = np.array([seed % 2**64, choice], np.uint64)
    return float(int(np.random.Philox(key=key, counter=position + (attempt << 128)).random_raw()) >> 11) * 2.0**-53


def largest(values: Array, count: int) -> Array:
    """The indices of the `count` largest values [size], descending; among equals the lowest index first."""
    return np.argsort(-values, kind="stable")[:count]


def log_softmax(row: Array) -> Array:
    """Natural log-probabilities [vocab] of a float64 row with a finite maximum."""
    shifted = row - row.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def adjusted(row: Array, draw: Draw) -> Array:
    """The float64 row after penalties, bias and the ban on stopping early: what temperature then divides."""
    params = draw.params
    row = _penalised(row, draw) if params.has_penalties else row.copy()
    for token_id, bias in params.logit_bias.items():
        row[token_id] += bias
    if _must_go_on(draw):
        row[_indices(draw.stop_ids)] = -np.inf
    return row


def kept(scaled: Array, params: SamplingParams) -> Array:
    """The tokens, ascending, that top-k, then top-p among those, then min-p leave.

    `scaled` [vocab] are logits over temperature with maximum 0. The likeliest token is always kept.
    """
    tokens = np.arange(len(scaled))
    if params.top_k is not None and params.top_k < len(scaled):
        tokens = np.sort(largest(scaled, params.top_k))
    if params.top_p < 1:
        tokens = tokens[_nucleus(scaled[tokens], params.top_p)]
    if params.min_p > 0:
        tokens = tokens[scaled[tokens] >= np.log(params.min_p)]
    return tokens


def _must_go_on(draw: Draw) -> bool:
    return len(draw.tokens) - draw.num_prompt < draw.params.min_tokens


def choose_one(logits: Array, draw: Draw) -> Choice | None:
    # A fresh contiguous float64 row: where it lay in the batch cannot matter to the order of any sum.
    raw = np.array(logits, np.float64)
    if not np.isfinite(raw.max()):
        return None
    row = adjusted(raw, draw)
    if not np.isfinite(row.max()):
        return None
    token_id = int(row.argmax()) if draw.params.is_greedy else _sampled(row, draw)
    return Choice(token_id, None if draw.params.logprobs is None else _logprob(raw, token_id, draw.params.logprobs))


def _sampled(row: Array, draw: Draw) -> int:
    with np.errstate(over="ignore"):  # a temperature near 0 sends all but the likeliest to -inf, as it should
        scaled = (row - row.max()) / draw.params.temperature
    *_, (token_id, _) = attempts(scaled, draw)
    return token_id


def attempts(scaled: Array, draw: Draw) -> Iterator[tuple[int, Array]]:
    """What is drawn until it is a token that top-p keeps: at first of those that top-k and min-p leave, then of those
    before the last that was drawn. Beside each how far the sums of the weights, as shares, are above the draw."""
    wanted = kept(scaled, draw.params)
    tokens = kept(scaled, replace(draw.params, top_p=1))
    for attempt in count():
        cumulative = np.cumsum(np.exp(scaled[tokens]))
        share = uniform(draw.seed, draw.choice, len(draw.tokens), attempt)
        # The share is at most 1 - 2⁻⁵³, so its product with the total always rounds to less than the total, and the
        # first sum above it belongs to a token of positive weight.
        found = tokens[np.searchsorted(cumulative, share * cumulative[-1], side="right")]
        yield int(found), cumulative / cumulative[-1] - share
        if found in wanted:
            return
        others = scaled[tokens]
        tokens = tokens[(others > scaled[found]) | ((others == scaled[found]) & (tokens < found))]


def _logprob(raw: Array, token_id: int, num_top: int) -> TokenLogprob:
    logprobs = log_softmax(raw)
    top = tuple((int(token), float(logprobs[token])) for token in largest(raw, num_top)) if num_top else ()
    return TokenLogprob(token_id, float(logprobs[token_id]), top)


def _penalised(row: Array, draw: Draw) -> Array:
    """Repetition over prompt and output, as in Keskar et al. (arXiv:1909.05858); presence and frequency over output."""
    params = draw.params
    tokens = np.array(draw.tokens, np.int64)
    if params.repetition_penalty != 1:
        is_seen = np.zeros(len(row), bool)
        is_seen[tokens] = True
        penalty = params.repetition_penalty
        row = np.where(is_seen, np.where(row > 0, row / penalty, row * penalty), row)
    counts = np.bincount(tokens[draw.num_prompt :], minlength=len(row))
    return np.asarray(row - params.frequency_penalty * counts - params.presence_penalty * (counts > 0))


def _indices(token_ids: Iterable[int]) -> Array:
    return np.array(sorted(token_ids), np.int64)


def _nucleus(scaled: Array, top_p: float) -> Array:
    """The ascending indices of the fewest largest whose weights reach `top_p` of all; of equals the lowest first."""
    order = np.argsort(-scaled, kind="stable")
    cumulative = np.cumsum(np.exp(scaled[order]))
    needed = int(np.searchsorted(cumulative, top_p * cumulative[-1])) + 1
    return np.sort(order[:needed])
