"""What samples of a contract cannot claim: experts' rows keep their bits in company, and what is no number is seen."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivet._native import Team, targets
from trivet.base.dtypes import Array, DType
from trivet.base.errors import GraphError
from trivet.operators.contract import FLOATS, Attribute, Call, Sample, TensorSpec, operator_named
from trivet.operators.moe import ends_of
from trivet.operators.native_sample import run_sample
from trivet.operators.samples import normal, spec

TEAM = Team([None, None])


def run(operator: str, *inputs: tuple[TensorSpec, Array], **attributes: Attribute) -> list[Array]:
    """The CPU's answer to a call over the rows of the first input."""
    contract, first = operator_named(operator), inputs[0]
    specs = tuple(each for each, _ in inputs)
    outputs = contract.output_specs(specs, attributes)
    dtypes = [argument.dtypes[0] for argument in contract.outputs]
    made = tuple(TensorSpec(each.axes, dtype) for each, dtype in zip(outputs, dtypes, strict=True))
    sizes = {str(first[0].axes[0]): len(first[1])}
    return run_sample(
        contract, Sample(Call(operator, specs, made, attributes), tuple(a for _, a in inputs), sizes), TEAM
    )


def mixed(x: Array, logits: Array, weight: Array) -> Array:
    """x [tokens, width] through its two experts of each token and back."""
    width, num_experts = x.shape[1], logits.shape[1]
    weights, experts = run(
        "router_topk", (spec(("tokens", num_experts), "float32"), logits), chosen=2, score="softmax", is_renormalised=1
    )
    pairs = spec(("tokens", 2), "int32")
    rows, places, ends = run(
        "moe_permute", (spec(("tokens", width), "float32"), x), (pairs, experts), num_experts=num_experts
    )
    wide = spec(("tokens", 2, width), "float32")
    (made,) = run(
        "grouped_linear", (wide, rows), (spec(weight.shape, "float32", "panels"), weight),
        (spec((num_experts,), "int32"), ends),
    )  # fmt: skip
    shares = spec(("tokens", 2), "float32")
    return run("moe_unpermute", (wide, made), (pairs, places), (shares, weights))[0]


@given(
    num_tokens=st.integers(1, 40), num_experts=st.integers(2, 9), width=st.integers(1, 40), seed=st.integers(0, 2**32)
)
@settings(max_examples=25, deadline=None)
def test_a_token_has_the_same_bits_alone_and_among_others(
    num_tokens: int, num_experts: int, width: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, logits = normal(rng, (num_tokens, width), "float32"), normal(rng, (num_tokens, num_experts), "float32")
    weight = normal(rng, (num_experts, width, width), "float32")
    together = mixed(x, logits, weight)

    for token in range(num_tokens):
        assert mixed(x[token : token + 1], logits[token : token + 1], weight).tobytes() == together[token].tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_row_of_an_expert_is_the_row_that_a_linear_makes(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    x, weight = normal(rng, (31, 1, 71), "float32"), normal(rng, (3, 200, 71), dtype)
    ends = np.array([0, 12, 31], np.int32)
    (made,) = run(
        "grouped_linear", (spec(("tokens", 1, 71), "float32"), x), (spec((3, 200, 71), dtype, "panels"), weight),
        (spec((3,), "int32"), ends),
    )  # fmt: skip
    for expert, rows in ((1, slice(0, 12)), (2, slice(12, 31))):
        sample = Sample(
            Call(
                "linear",
                (spec(("tokens", 71), "float32"), spec((200, 71), dtype, "panels"), None),
                (spec(("tokens", 200), "float32"),),
            ),
            (x[rows, 0], weight[expert], None),
            {"tokens": rows.stop - rows.start},
        )
        assert run_sample(operator_named("linear"), sample, TEAM)[0].tobytes() == made[rows].tobytes()


@given(num_tokens=st.integers(1, 30), num_experts=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_places_are_each_taken_once_and_ordered_by_expert_then_by_pair(
    num_tokens: int, num_experts: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    chosen = int(rng.integers(1, num_experts + 1))
    experts = np.array([rng.permutation(num_experts)[:chosen] for _ in range(num_tokens)], np.int32)
    x = np.arange(num_tokens, dtype=np.float32)[:, None]
    rows, places, ends = run(
        "moe_permute", (spec(("tokens", 1), "float32"), x), (spec(("tokens", chosen), "int32"), experts),
        num_experts=num_experts,
    )  # fmt: skip
    order = np.argsort(places.reshape(-1))

    assert sorted(places.reshape(-1).tolist()) == list(range(num_tokens * chosen))
    assert sorted((expert, pair) for pair, expert in enumerate(experts.reshape(-1).tolist())) == [
        (experts.reshape(-1)[pair], pair) for pair in order
    ]
    assert np.array_equal(ends_of(experts, num_experts), ends)
    assert np.array_equal(order // chosen, rows.reshape(-1))


@pytest.mark.parametrize("target", targets())
def test_a_nan_is_chosen_where_infinity_would_be_and_spoils_the_weights_of_its_token_alone(target: str) -> None:
    logits = np.zeros((2, 8), np.float32)
    logits[0, 3], logits[0, 5] = np.inf, np.nan
    contract = operator_named("router_topk")
    outputs = (spec(("tokens", 2), "float32"), spec(("tokens", 2), "int32"))
    attributes = {"chosen": 2, "score": "softmax", "is_renormalised": 0}
    sample = Sample(
        Call("router_topk", (spec(("tokens", 8), "float32"),), outputs, attributes), (logits,), {"tokens": 2}
    )
    weights, experts = run_sample(contract, sample, TEAM, target)

    assert [[3, 5], [0, 1]] == experts.tolist()
    assert np.isnan(weights[0]).all()
    assert [0.125, 0.125] == weights[1].tolist()


REFUSED: Mapping[str, tuple[str, tuple[TensorSpec, ...], dict[str, Attribute]]] = {
    "top_k: 41 of 40 logits cannot be chosen, wanted 1 to 40": (
        "top_k",
        (spec(("rows", 40), "float32"),),
        {"count": 41},
    ),
    "router_topk: 0 of 8 experts cannot be chosen, wanted 1 to 8": (
        "router_topk",
        (spec(("tokens", 8), "float32"),),
        {"chosen": 0, "score": "softmax", "is_renormalised": 0},
    ),
    "router_topk: score is 'tanh', wanted one of softmax, sigmoid": (
        "router_topk",
        (spec(("tokens", 8), "float32"),),
        {"chosen": 1, "score": "tanh", "is_renormalised": 0},
    ),
    "moe_permute: 3 experts are chosen of each token, there are 2": (
        "moe_permute",
        (spec(("tokens", 8), "float32"), spec(("tokens", 3), "int32")),
        {"num_experts": 2},
    ),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_more_than_there_is_cannot_be_chosen(sentence: str) -> None:
    operator, inputs, attributes = REFUSED[sentence]

    with pytest.raises(GraphError) as refused:
        operator_named(operator).output_specs(inputs, attributes)

    assert sentence == refused.value.message
