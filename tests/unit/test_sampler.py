from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sampler import Draw, adjusted, choose, kept, largest, log_softmax, uniform

EOS = frozenset({0})


def draw(params, tokens=(1,), num_prompt=1, seed=5, choice=0):
    return Draw(params, tokens, num_prompt, seed, choice, EOS)


def logits_of(*rows):
    return np.array(rows, np.float32)


def token(row, params, **fields):
    return choose(logits_of(row), [draw(params, **fields)])[0].token_id


GREEDY = SamplingParams(temperature=0)
coarse_rows = st.lists(st.integers(-4, 4), min_size=1, max_size=40).map(lambda row: np.array(row, np.float64))


def test_greedy_takes_the_largest_and_of_equals_the_lowest_id():
    assert [2, 0] == [choice.token_id for choice in choose(logits_of([0, 1, 3, 3], [2, 2, 2, 2]), [draw(GREEDY)] * 2)]


def test_greedy_rows_and_sampled_rows_share_a_batch():
    rows = np.random.default_rng(1).normal(size=(5, 50)).astype(np.float32)
    draws = [draw(SamplingParams(temperature=i % 2), seed=i) for i in range(5)]
    alone = [choose(rows[i : i + 1], draws[i : i + 1])[0] for i in range(5)]

    assert alone == choose(rows, draws)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=0, logprobs=1), SamplingParams()])
def test_a_row_that_is_not_finite_gives_no_token_and_spares_its_neighbours(bad, params):
    assert [None, 1] == [
        choice and choice.token_id for choice in choose(logits_of([0, bad, 1], [0, 99, 0]), [draw(params)] * 2)
    ]
    assert [None] == choose(logits_of([-np.inf, -np.inf]), [draw(params)])


def test_masked_logits_are_never_drawn():
    row = [-np.inf, 1, -np.inf, 0]

    assert {1, 3} == {token(row, SamplingParams(temperature=2), seed=seed) for seed in range(100)}


def test_repetition_penalty_covers_prompt_and_output_and_presence_and_frequency_only_output():
    row = np.array([2.0, -2.0, 2.0, 1.0])
    tokens = (0, 1, 2, 2)  # 0 and 1 are the prompt
    params = SamplingParams(repetition_penalty=2, presence_penalty=0.5, frequency_penalty=0.25)

    assert [1, -4, 0, 1] == list(adjusted(row, draw(params, tokens, num_prompt=2)))


def test_bias_is_added_after_penalties_and_before_temperature():
    params = SamplingParams(repetition_penalty=2, logit_bias={1: 3.0})

    assert [1, 4] == list(adjusted(np.array([1.0, 2.0]), draw(params)))


def test_before_min_tokens_no_token_that_would_stop_is_chosen():
    params = SamplingParams(temperature=0, min_tokens=2)

    assert 1 == token([9, 1, 0], params, tokens=(1, 1), num_prompt=1)
    assert 0 == token([9, 1, 0], params, tokens=(1, 1, 1), num_prompt=1)


@given(coarse_rows, st.integers(1, 45))
def test_the_largest_come_descending_with_ties_by_id(row, count):
    assert sorted(range(len(row)), key=lambda i: (-row[i], i))[:count] == list(largest(row, count))


def slow_kept(scaled, params):
    """The same rule from a full sort and plain sums."""
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))[: params.top_k]
    weights = np.exp(scaled[order])
    if params.top_p < 1:
        reached = np.flatnonzero(np.cumsum(weights) >= params.top_p * weights.sum() * (1 - 1e-12))
        order = order[: int(reached[0]) + 1]
    return sorted(i for i in order if np.exp(scaled[i]) >= params.min_p * (1 - 1e-12))


@given(
    st.lists(st.integers(-1000, 0).map(lambda x: x / 64), min_size=1, max_size=200),  # differences are exact
    st.none() | st.integers(1, 250),
    st.sampled_from([0.1, 0.37, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.013, 0.5, 1.0]),
)
def test_top_k_then_top_p_then_min_p_keep_what_a_full_sort_keeps(row, top_k, top_p, min_p):
    scaled = np.array(row) - max(row)
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)

    assert slow_kept(scaled, params) == list(kept(scaled, params))


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.999])
def test_top_p_of_a_flat_row_looks_as_far_as_it_must(top_p):
    assert round(5000 * top_p) == pytest.approx(len(kept(np.zeros(5000), SamplingParams(top_p=top_p))), abs=1)


def test_a_draw_is_its_place_and_nothing_else():
    places = [(seed, choice, position) for seed in (0, 1, 2**63 - 1, -1) for choice in (0, 1) for position in (0, 1, 9)]
    draws = [uniform(*place) for place in places]

    assert len(places) == len(set(draws))
    assert draws == [uniform(*place) for place in reversed(places)][::-1]
    assert all(0 <= draw < 1 for draw in draws)


def test_draws_are_pinned():
    """A new NumPy or a change here must not change what a seed means."""
    pinned = [0.8720734548204873, 0.8824668302545412, 0.0828426870273763]

    assert pinned == [uniform(7, 0, 0), uniform(7, 1, 0), uniform(7, 0, 1)]


def test_sampled_tokens_follow_the_distribution():
    row = np.log([0.5, 0.25, 0.125, 0.125])
    counts = Counter(token(row, SamplingParams(), seed=3, tokens=(1,) * n) for n in range(1, 4001))
    expected = np.array([2000, 1000, 500, 500])
    got = np.array([counts[i] for i in range(4)])

    assert ((got - expected) ** 2 / expected).sum() < 16.3  # chi², 3 degrees of freedom, p = 0.001; fixed seeds


def test_a_temperature_near_zero_is_greedy():
    assert 2 == token([1, 2, 2.001, 0], SamplingParams(temperature=1e-300))


@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=60), st.integers(0, 20))
def test_logprobs_are_the_log_softmax_of_the_raw_logits(row, num_top):
    params = SamplingParams(temperature=0.5, logprobs=num_top, logit_bias={0: 50.0}, repetition_penalty=1.5)
    choice = choose(logits_of(row), [draw(params, tokens=(0,))])[0]
    exact = np.array(row, np.float64) - np.logaddexp.reduce(np.array(row, np.float64))
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))[:num_top]

    assert exact[choice.token_id] == pytest.approx(choice.logprob.logprob, abs=1e-12)
    assert order == [token_id for token_id, _ in choice.logprob.top]
    assert [exact[i] for i in order] == pytest.approx([logprob for _, logprob in choice.logprob.top], abs=1e-12)


def test_where_a_row_lies_does_not_change_a_bit():
    rng = np.random.default_rng(2)
    row = (rng.normal(size=1009) * 3).astype(np.float32)
    params = SamplingParams(logprobs=20, top_p=0.9)
    expected = choose(row[None], [draw(params)])
    for offset in range(1, 16):
        room = np.zeros((3, 1024), np.float32)
        room[1, offset : offset + 1009] = row

        assert expected == choose(room[1:2, offset : offset + 1009], [draw(params)])


def test_log_softmax_sums_to_one():
    assert 1 == pytest.approx(np.exp(log_softmax(np.array([-1000.0, 0.0, 3.0]))).sum())
