"""From a row of logits to a token: a pure function of the row, the tokens before it, the parameters and the seed.

Nothing here remembers a draw. The random number of a token comes from a counter-based generator keyed by (seed,
choice) at the token's position, so neither the batch, a preemption nor a restart can change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from trivet.base.dtypes import Array
from trivet.framework.engine.params import SamplingParams

_FEW = 256  # as many as are sorted without a thought


class TokenLogprob(NamedTuple):
    """Natural log-probabilities under the model's own distribution: raw logits, before penalties and temperature."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # the likeliest (token, logprob), descending, ties by id


class Draw(NamedTuple):
    """All that the choice of one token depends on, beside its logits."""

    params: SamplingParams
    tokens: Sequence[int]  # all before it, the prompt included
    num_prompt: int
    seed: int
    choice: int  # which of the request's n
    stop_ids: frozenset[int]


class Choice(NamedTuple):
    token_id: int
    logprob: TokenLogprob | None


def choose(logits: Array, draws: Sequence[Draw]) -> list[Choice | None]:
    """A token for each row of `logits` [rows, vocab] float32; None for a row that has NaN, +inf or nothing finite."""
    choices: list[Choice | None] = [None] * len(draws)
    plain: list[int] = []
    for row, draw in enumerate(draws):
        if _is_plain(draw):
            plain.append(row)
        else:
            choices[row] = _choose_one(logits[row], draw)
    if plain:
        rows = logits if len(plain) == len(draws) else logits[plain]
        best = np.argmax(rows, axis=1)  # the first of equals: ties go to the lowest id; a NaN counts as the largest
        is_finite = np.isfinite(rows[np.arange(len(plain)), best])
        for row, token_id, is_sound in zip(plain, best.tolist(), is_finite.tolist(), strict=True):
            choices[row] = Choice(token_id, None) if is_sound else None
    return choices


def uniform(seed: int, choice: int, position: int) -> float:
    """The number in [0, 1) that belongs to this place: Philox keyed by (seed, choice), counter at `position`."""
    key = np.array([seed % 2**64, choice], np.uint64)
    return float(int(np.random.Philox(key=key, counter=position).random_raw()) >> 11) * 2.0**-53


def largest(values: Array, count: int) -> Array:
    """The indices of the `count` largest values [size], descending; among equals the lowest index first."""
    size = len(values)
    if count >= size:
        return np.argsort(-values, kind="stable")
    threshold = np.partition(values, size - count)[size - count]
    above = np.flatnonzero(values > threshold)
    ties = np.flatnonzero(values == threshold)[: count - len(above)]
    found = np.concatenate([above, ties])
    return found[np.argsort(-values[found], kind="stable")]


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


def _is_plain(draw: Draw) -> bool:
    params = draw.params
    is_bare = params.is_greedy and params.logprobs is None and not params.has_penalties and not params.logit_bias
    return is_bare and not _must_go_on(draw)


def _must_go_on(draw: Draw) -> bool:
    return len(draw.tokens) - draw.num_prompt < draw.params.min_tokens


def _choose_one(logits: Array, draw: Draw) -> Choice | None:
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
    tokens = kept(scaled, draw.params)
    cumulative = np.cumsum(np.exp(scaled[tokens]))
    # The draw is at most 1 - 2⁻⁵³, so its product with the total always rounds to less than the total, and the first
    # sum above it belongs to a token of positive weight.
    target = uniform(draw.seed, draw.choice, len(draw.tokens)) * cumulative[-1]
    return int(tokens[np.searchsorted(cumulative, target, side="right")])


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
    """The ascending indices of the fewest largest whose weights reach `top_p` of the total; of equals the lowest first.

    Where that set ends is found by halving the range of values: sorting a whole vocabulary would cost more than all
    the rest of the sampler, and a flat distribution needs most of it.
    """
    weights = np.exp(scaled)
    target = top_p * weights.sum()
    inside: list[Array] = []  # in the set for certain
    reached = 0.0  # their weight
    open_ones = np.arange(len(scaled))
    while len(open_ones) > _FEW:
        values = scaled[open_ones]
        low, high = values[np.isfinite(values)].min(initial=0.0), values.max()
        above = values > (low + high) / 2
        upper = open_ones[above]
        if len(upper) in (0, len(open_ones)):
            break  # all are equal
        weight = weights[upper].sum()
        if reached + weight >= target:
            open_ones = upper
            continue
        inside.append(upper)
        reached += weight
        open_ones = open_ones[~above]
    order = open_ones[np.argsort(-scaled[open_ones], kind="stable")]
    needed = int(np.searchsorted(reached + np.cumsum(weights[order]), target)) + 1
    return np.sort(np.concatenate([*inside, order[:needed]]))
