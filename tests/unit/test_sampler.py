from array import array
from collections import Counter
from dataclasses import replace
from math import log

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.pretend_plan import chosen
from tests.unit.sampler_reference import Draw, adjusted, attempts, choose_one, kept, log_softmax
from tests.unit.sampler_reference import uniform as numpy_uniform
from trivet._native import Sampler, Team, targets, uniform
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sampler import choose, to_draw

EOS = frozenset({0})
GREEDY = SamplingParams(temperature=0)


def token(row, params, tokens=(1,), **fields):
    return chosen(row, params, tokens, **fields).token_id


# Exact in single precision, and with exact differences: what is kept cannot hang on rounding.
sixteenths = st.integers(-160, 160).map(lambda x: x / 16)
rows = st.lists(sixteenths, min_size=1, max_size=200).map(lambda row: np.array(row, np.float32))
seeds = st.integers(-(2**63), 2**63 - 1)


def test_greedy_takes_the_largest_and_of_equals_the_lowest_id():
    assert [2, 0] == [token([0, 1, 3, 3], GREEDY), token([2, 2, 2, 2], GREEDY)]


def test_a_step_that_ends_no_prompt_asks_for_no_token_however_its_logits_lie():
    no_rows = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (0, 8), (0, 0))  # as PyTorch's are

    assert [] == choose(Sampler(Team([None]), 8, targets()[0]), no_rows, []).tokens.tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=0, logprobs=1), SamplingParams(),
                                    SamplingParams(logit_bias={1: -100.0}), SamplingParams(min_tokens=9)])  # fmt: skip
@pytest.mark.parametrize("place", [0, 1, 70])
def test_a_row_that_is_not_finite_gives_no_token(bad, params, place):
    row = np.zeros(80, np.float32)
    row[place] = bad

    assert chosen(row, params, (1,)) is None


def test_a_row_with_nothing_finite_gives_no_token_whether_it_came_so_or_was_banned():
    assert chosen([-np.inf, -np.inf], GREEDY, (1,)) is None
    assert chosen([1.0], SamplingParams(min_tokens=1), (1,)) is None


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_row_has_the_same_answer_alone_and_in_any_batch_on_any_target_and_stays_as_it_was(target, num_threads):
    rng = np.random.default_rng(num_threads)
    logits = np.zeros((7, 1024), np.float32)[:, 5:1014]
    logits[:] = rng.normal(size=(7, 1009)) * 3
    logits[3, 17] = np.nan
    before = logits.copy()
    tokens = [array("i", rng.integers(0, 1009, 30).tolist()) for _ in range(7)]
    asked = [SamplingParams(temperature=i % 3, top_p=(1, 0.9)[i % 2], top_k=(None, 40)[i // 2 % 2], logprobs=i,
                            repetition_penalty=1 + i / 8, presence_penalty=i % 2, min_p=i / 100)
             for i in range(7)]  # fmt: skip
    draws = [to_draw(params, 10, i, 0, EOS) for i, params in enumerate(asked)]
    addresses = [each.buffer_info()[0] for each in tokens]
    alone = Sampler(Team([None]), 1009, "scalar")
    expected = [alone.choose(logits[i : i + 1].copy(), [draw], [30], [(0, addresses[i])])
                for i, draw in enumerate(draws)]  # fmt: skip
    together = Sampler(Team([None] * num_threads), 1009, target).choose(
        logits, draws, [30] * 7, [*enumerate(addresses)]
    )

    assert [int(each[0][0]) for each in expected] == together[0].tolist()
    assert [(i, *logprob[1:]) for i, each in enumerate(expected) for logprob in each[1]] == together[1]
    assert [3] == [i for i, each in enumerate(expected) if each[2]] == together[2]
    assert before.tobytes() == logits.tobytes()


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("spread", [0, 0.2, 2, 9])
def test_a_whole_vocabulary_has_the_same_answers_on_any_target_also_where_logits_are_equal(target, spread):
    row = (np.random.default_rng(1).normal(size=(1, 3001)) * spread * 4).round().astype(np.float32) / 4
    row[0, ::17] = -np.inf
    asked = [(SamplingParams(top_p=top_p, min_p=min_p, temperature=temperature), seed) for seed in range(5)
             for top_p in (1e-9, 0.5, 0.97, 1 - 1e-12) for min_p in (0, 0.02) for temperature in (0.6, 2)]  # fmt: skip
    draws = [to_draw(params, 1, seed, 0, EOS) for params, seed in asked]
    slow, fast = Sampler(Team([None]), 3001, "scalar"), Sampler(Team([None]), 3001, target)

    for draw in draws:
        assert slow.choose(row, [draw], [1], [])[0].tolist() == fast.choose(row, [draw], [1], [])[0].tolist()


def with_head(logits, team):
    """A sampler, and what a head would have left beside these rows, changed where they have changed."""
    ranked = np.where(np.isnan(logits), np.float32(np.inf), logits)
    largest = np.maximum.reduceat(ranked, np.arange(0, logits.shape[1], 32), axis=1)
    operands = [(array.ctypes.data, array.strides[0], "float32") for array in (logits, largest)]
    return Sampler(team, logits.shape[1], None, (operands[0], operands[1], len(logits))), largest


def test_what_a_head_has_found_is_believed_of_its_own_rows_and_of_no_others():
    logits = np.zeros((3, 70), np.float32)
    logits[:, 69] = 1
    sampler, largest = with_head(logits[:2], Team([None]))
    largest[:] = np.inf
    draws = [to_draw(GREEDY, 1, 0, 0, EOS)] * 3

    assert [0, 1] == sampler.choose(logits, draws, [1] * 3, [])[2]
    assert [0] == sampler.choose(logits[1:], draws[1:], [1] * 2, [])[2]
    assert [69] * 3 == sampler.choose(logits.copy(), draws, [1] * 3, [])[0].tolist()
    assert [5] * 2 == sampler.choose(np.eye(2, 70, 5, dtype=np.float32)[:1].repeat(2, 0), draws[:2], [1] * 2, [])[
        0
    ].tolist()


def test_rows_of_a_head_that_are_too_short_for_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match="rows of head are 8 bytes apart, and 3 logits take more"):
        Sampler(Team([None]), 3, None, ((64, 8, "float32"), (64, 4, "float32"), 1))


def test_masked_logits_are_never_drawn():
    row = [-np.inf, 1, -np.inf, 0]

    assert {1, 3} == {token(row, SamplingParams(temperature=2), seed=seed) for seed in range(100)}


@given(
    rows,
    st.builds(
        SamplingParams,
        temperature=st.just(0),
        repetition_penalty=st.sampled_from([0.5, 1, 2]),
        presence_penalty=st.sampled_from([-1, 0, 0.5]),
        frequency_penalty=st.sampled_from([-1, 0, 0.25]),
        logit_bias=st.dictionaries(st.integers(0, 4), st.sampled_from([-3.0, 2.5])),
        min_tokens=st.integers(0, 4),
    ),
    st.lists(st.integers(0, 199), max_size=12),
    st.integers(0, 5),
)
def test_penalties_then_bias_then_the_ban_on_stopping_are_those_of_the_reference(row, params, tokens, num_prompt):
    tokens = [each % len(row) for each in tokens]
    num_prompt = min(num_prompt, len(tokens))
    assume(max(params.logit_bias, default=0) < len(row))
    draw = Draw(params, tokens, num_prompt, 1, 0, EOS)
    wanted = adjusted(row.astype(np.float64), draw)

    found = chosen(row, params, tokens, num_prompt)
    if np.isfinite(wanted.max()):
        assert int(wanted.argmax()) == found.token_id
    else:
        assert found is None


TWO = Team([None, None])


@given(
    st.integers(1, 400),
    seeds,
    st.lists(
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0, 0.5, 1, 2]),
            top_k=st.none() | st.integers(1, 250),
            top_p=st.sampled_from([0.1, 0.9, 1.0]),
            min_p=st.sampled_from([0.0, 0.013]),
            repetition_penalty=st.sampled_from([0.5, 1, 2]),
            presence_penalty=st.sampled_from([0, 0.5]),
            frequency_penalty=st.sampled_from([-1, 0]),
            logit_bias=st.dictionaries(st.just(0), st.sampled_from([-30.0, 2.5])),
            min_tokens=st.integers(0, 40),
            logprobs=st.sampled_from([None, 0, 3]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([1, 0.1, 0]),
    st.sampled_from([None, np.nan, np.inf, -np.inf]),
)
def test_a_row_whose_head_has_surveyed_it_gives_what_a_copy_of_it_gives(vocab_size, seed, asked, grain, odd):
    rng = np.random.default_rng(seed % 2**64)
    logits = np.zeros((len(asked), vocab_size + 5), np.float32)[:, :vocab_size]
    logits[:] = rng.normal(size=logits.shape) * 3
    if grain:
        logits[:] = (logits / grain).round() * grain  # with ties
    if odd is not None:
        logits[rng.random(logits.shape) < 0.5 / vocab_size] = odd
    histories = [array("i", rng.integers(0, vocab_size, 30).tolist()) for _ in asked]
    draws = [to_draw(params, 10, i, 0, EOS) for i, params in enumerate(asked)]
    given_tokens = [30] * len(asked), [(i, each.buffer_info()[0]) for i, each in enumerate(histories)]
    sampler, largest = with_head(logits, TWO)
    before = logits.tobytes(), largest.tobytes()
    tokens, logprobs, unfit = sampler.choose(logits.copy(), draws, *given_tokens)
    found = sampler.choose(logits, draws, *given_tokens)

    assert (tokens.tolist(), logprobs, unfit) == (found[0].tolist(), *found[1:])
    assert before == (logits.tobytes(), largest.tobytes())


def test_repetition_penalty_covers_prompt_and_output_and_presence_and_frequency_only_output():
    tokens = (0, 1, 2, 2)  # 0 and 1 are the prompt
    params = SamplingParams(repetition_penalty=2, presence_penalty=0.5, frequency_penalty=0.25)
    draw = Draw(params, tokens, 2, 5, 0, EOS)

    assert [1, -4, 0, 1] == list(adjusted(np.array([2.0, -2.0, 2.0, 1.0]), draw))


def test_before_min_tokens_no_token_that_would_stop_is_chosen():
    params = SamplingParams(temperature=0, min_tokens=2)

    assert 1 == token([9, 1, 0], params, (1, 1))
    assert 0 == token([9, 1, 0], params, (1, 1, 1))


filters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.5, 1, 2]),
    top_k=st.none() | st.integers(1, 250),
    top_p=st.sampled_from([0.1, 0.37, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.5, 1.0]),
)


def is_on_an_edge(scaled, draw):
    """Does the answer hang on a rounding: where the nucleus ends, what min-p keeps, or which token a draw meets?"""
    params = draw.params
    order = np.argsort(-scaled, kind="stable")[: params.top_k]
    cumulative = np.cumsum(np.exp(scaled[order]))
    edges = [cumulative / cumulative[-1] - params.top_p if params.top_p < 1 else 1]
    edges.append(scaled - log(params.min_p) if params.min_p > 0 else 1)
    edges += [sums for _, sums in attempts(scaled, draw)]
    return min(np.abs(each).min() for each in edges) < 1e-5


@given(rows, filters, seeds, st.integers(1, 5))
def test_a_sampled_token_is_that_of_the_reference_with_its_full_sorts(row, params, seed, position):
    tokens = (0,) * position
    scaled = (row.astype(np.float64) - row.max()) / params.temperature
    draw = Draw(params, tokens, position, seed, 0, EOS)
    assume(not is_on_an_edge(scaled, draw))

    assert choose_one(row, draw).token_id == token(row, params, tokens, num_prompt=position, seed=seed)


@given(
    rows,
    filters,
    st.fixed_dictionaries(
        {
            "repetition_penalty": st.sampled_from([0.5, 1, 2]),
            "presence_penalty": st.sampled_from([-1, 0, 0.5]),
            "frequency_penalty": st.sampled_from([-1, 0, 0.25]),
            "logit_bias": st.dictionaries(st.integers(0, 4), st.sampled_from([-3.0, 2.5])),
            "min_tokens": st.integers(0, 4),
            "logprobs": st.sampled_from([None, 0, 3]),
        }
    ),
    st.lists(st.integers(0, 199), max_size=12),
    seeds,
)
def test_filters_see_what_penalties_and_bias_have_made_of_the_row_and_logprobs_do_not(row, params, edits, tokens, seed):
    params = replace(params, **edits)
    tokens = [each % len(row) for each in tokens]
    assume(max(params.logit_bias, default=0) < len(row))
    draw = Draw(params, tokens, len(tokens) // 2, seed, 0, EOS)
    edited = adjusted(row.astype(np.float64), draw)
    assume(np.isfinite(edited.max()) and not is_on_an_edge((edited - edited.max()) / params.temperature, draw))
    wanted, got = choose_one(row, draw), chosen(row, params, tokens, len(tokens) // 2, seed)

    assert wanted.token_id == got.token_id
    if wanted.logprob is not None:
        assert wanted.logprob.logprob == pytest.approx(got.logprob.logprob, abs=1e-6)
        assert [each for each, _ in wanted.logprob.top] == [each for each, _ in got.logprob.top]


@pytest.mark.parametrize("spread", [0.1, 1, 4, 12])
@pytest.mark.parametrize(
    "params", [SamplingParams(top_p=0.9), SamplingParams(top_k=50), SamplingParams(top_k=2000, top_p=0.95),
               SamplingParams(min_p=0.02), SamplingParams(temperature=0.3, top_p=0.99), SamplingParams()],
    ids=str,
)  # fmt: skip
def test_of_a_whole_vocabulary_the_tokens_are_those_of_the_reference(params, spread):
    row = (np.random.default_rng(3).normal(size=20001) * spread).astype(np.float32)
    scaled = (row.astype(np.float64) - row.max()) / params.temperature
    wanted, got = [], []
    for seed in range(12):
        draw = Draw(params, (1,), 1, seed, 0, EOS)
        if not is_on_an_edge(scaled, draw):
            wanted.append(choose_one(row, draw).token_id)
            got.append(token(row, params, seed=seed))

    assert wanted == got


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.999])
def test_top_p_of_a_flat_row_keeps_the_lowest_ids(top_p):
    drawn = {token(np.zeros(500), SamplingParams(top_p=top_p), seed=seed) for seed in range(3000)}

    assert set(range(max(drawn) + 1)) >= drawn
    assert 500 * top_p == pytest.approx(max(drawn), abs=2)


@given(seeds, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_draw_is_the_one_numpys_philox_gives_at_its_place(seed, choice, position, attempt):
    assert numpy_uniform(seed, choice, position, attempt) == uniform(seed % 2**64, choice, position, attempt)


def test_draws_are_pinned():
    """A change here must not change what a seed means."""
    pinned = [0.8720734548204873, 0.8824668302545412, 0.0828426870273763, 0.10281709468611455]

    assert pinned == [uniform(7, 0, 0), uniform(7, 1, 0), uniform(7, 0, 1), uniform(7, 0, 0, attempt=1)]


def test_sampled_tokens_follow_the_distribution():
    row = np.log([0.5, 0.25, 0.125, 0.125])
    counts = Counter(token(row, SamplingParams(), (1,) * n, seed=3) for n in range(1, 4001))
    expected = np.array([2000, 1000, 500, 500])
    got = np.array([counts[i] for i in range(4)])

    assert ((got - expected) ** 2 / expected).sum() < 16.3  # chi², 3 degrees of freedom, p = 0.001; fixed seeds


@pytest.mark.parametrize("params", [SamplingParams(top_p=0.72), SamplingParams(top_p=0.75, min_p=0.2),
                                    SamplingParams(top_p=0.75, top_k=4), SamplingParams(top_p=0.01, top_k=3)],
                         ids=str)  # fmt: skip
def test_what_is_kept_has_the_chances_that_it_has_among_itself(params):
    row = np.log([0.1, 0.3, 0.06, 0.4, 0.04, 0.1])
    tokens = kept(row - row.max(), params)
    chances = np.exp(row[tokens]) / np.exp(row[tokens]).sum()
    counts = Counter(token(row, params, (1,) * n, seed=3) for n in range(1, 4001))
    expected, got = chances * 4000, np.array([counts[each] for each in tokens.tolist()])

    assert 4000 == got.sum()
    assert ((got - expected) ** 2 / expected).sum() < 13.8  # chi², at most 2 degrees of freedom, p = 0.001; fixed seeds


def test_a_temperature_near_zero_is_greedy():
    assert 2 == token([1, 2, 2.001, 0], SamplingParams(temperature=1e-300))


@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=200), st.integers(0, 20))
def test_logprobs_are_the_log_softmax_of_the_raw_logits(row, num_top):
    params = SamplingParams(temperature=0.5, logprobs=num_top, logit_bias={0: 50.0}, repetition_penalty=1.5)
    choice = chosen(row, params, (0,))
    exact = log_softmax(np.array(row, np.float64))
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))[:num_top]

    assert exact[choice.token_id] == pytest.approx(choice.logprob.logprob, abs=1e-6)
    assert order == [token_id for token_id, _ in choice.logprob.top]
    assert [exact[i] for i in order] == pytest.approx([logprob for _, logprob in choice.logprob.top], abs=1e-6)


def test_logits_of_another_shape_are_refused():
    sampler = Sampler(Team([None]), 8)
    draw = to_draw(GREEDY, 1, 0, 0, EOS)
    with pytest.raises(ValueError, match=r"logits are \[1, 9\], wanted \[1, 8\]"):
        sampler.choose(np.zeros((1, 9), np.float32), [draw], [1], [])
    with pytest.raises(ValueError, match="not side by side"):
        sampler.choose(np.zeros((1, 16), np.float32)[:, ::2], [draw], [1], [])


def test_a_penalty_without_the_tokens_it_counts_is_refused():
    draw = to_draw(SamplingParams(presence_penalty=1), 1, 0, 0, EOS)
    with pytest.raises(ValueError, match="row 0 has penalties, and no history is given"):
        Sampler(Team([None]), 8).choose(np.zeros((1, 8), np.float32), [draw], [1], [])
