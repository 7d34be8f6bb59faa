import pytest

from trivet.base.errors import RequestError
from trivet.framework.engine.params import SamplingParams

OUT_OF_RANGE = [
    ("temperature", -0.1), ("temperature", 2.1), ("temperature", float("nan")), ("temperature", "hot"),
    ("top_p", 0), ("top_p", 1.1), ("top_k", 0), ("top_k", 1.5), ("min_p", -0.1), ("min_p", 2),
    ("repetition_penalty", 0), ("repetition_penalty", 1e-300), ("repetition_penalty", float("inf")),
    ("repetition_penalty", 10**400),
    ("presence_penalty", 2.5), ("frequency_penalty", -2.5), ("seed", 2**63), ("max_tokens", 0), ("max_tokens", True),
    ("min_tokens", -1), ("logprobs", 21), ("logprobs", -1), ("n", 0), ("n", 129),
    ("stop", "a bare string"), ("stop", ("",)), ("stop_token_ids", (100,)), ("stop_token_ids", (-1,)),
    ("logit_bias", {100: 1}), ("logit_bias", {3: 101}), ("logit_bias", {"3": 1}),
]  # fmt: skip


@pytest.mark.parametrize("parameter, value", OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_name(parameter, value):
    with pytest.raises(RequestError, match=parameter) as caught:
        SamplingParams(**{parameter: value}).validated(vocab_size=100)

    assert parameter == caught.value.parameter


def test_more_tokens_at_least_than_at_most_is_refused():
    with pytest.raises(RequestError, match="min_tokens is 5, above max_tokens 4"):
        SamplingParams(min_tokens=5, max_tokens=4).validated(vocab_size=100)


def test_the_ends_of_every_range_are_taken():
    for params in (
        SamplingParams(temperature=0, top_p=1e-9, top_k=1, min_p=0, presence_penalty=-2, frequency_penalty=-2,
                       seed=-(2**63), max_tokens=1, min_tokens=1, logprobs=0, n=1, logit_bias={0: -100},
                       repetition_penalty=0.01),
        SamplingParams(temperature=2, top_p=1, top_k=2**40, min_p=1, presence_penalty=2, frequency_penalty=2,
                       seed=2**63 - 1, logprobs=20, n=128, logit_bias={99: 100}, stop_token_ids=(99,), stop=("x",),
                       repetition_penalty=100),
    ):  # fmt: skip
        assert params is params.validated(vocab_size=100)


def test_a_refusal_says_the_range():
    with pytest.raises(RequestError, match="top_p is 0, wanted a number above 0 to 1"):
        SamplingParams(top_p=0).validated(vocab_size=100)
