"""The rewriting engine and the laws, on graphs small enough to read."""

from dataclasses import replace

import pytest

import trivet.operators  # noqa: F401  registers the contracts
from trivet.base.errors import GraphError
from trivet.framework.graph import laws
from trivet.framework.graph.builder import GraphBuilder
from trivet.framework.graph.ir import Graph, Node, from_json, to_json
from trivet.framework.graph.passes import FUSE_ADD_NORM, MERGE_GATE_UP, MERGE_QKV, optimise, stages, target_for
from trivet.framework.graph.rewrite import Rule, joined_name, rewrite


def mlp(is_gate_read_elsewhere: bool = False) -> Graph:
    builder = GraphBuilder("mlp")
    builder.input("tokens", ("tokens",), "int32")
    hidden = builder.apply("embed", ("tokens", builder.weight("table", "table", (8, 4))), "hidden")
    gate = builder.apply("linear", (hidden, builder.weight("l.gate.weight", "g", (6, 4)), None), "l.gate")
    up = builder.apply("linear", (hidden, builder.weight("l.up.weight", "u", (6, 4)), None), "l.up")
    mixed = builder.apply("silu_mul", (gate, up), "mixed")
    if is_gate_read_elsewhere:
        mixed = builder.apply("add", (mixed, gate), "sum")
    return builder.finish((mixed,))


def normed_sum(is_sum_an_output: bool = False) -> Graph:
    builder = GraphBuilder("norm")
    builder.input("tokens", ("tokens",), "int32")
    hidden = builder.apply("embed", ("tokens", builder.weight("table", "table", (8, 4))), "hidden")
    total = builder.apply("add", (hidden, hidden), "total")
    normed = builder.apply("rms_norm", (total, builder.weight("w", "w", (4,))), "normed", epsilon=1e-5)
    return builder.finish((normed, total) if is_sum_an_output else (normed,))


def operators(graph: Graph) -> list[str]:
    return [node.operator for node in graph.nodes]


def test_two_linears_of_one_input_become_one_and_their_weights_one_recipe() -> None:
    graph = rewrite(mlp(), MERGE_GATE_UP)

    assert operators(graph) == ["embed", "linear", "split", "silu_mul"]
    assert graph.weights["l.gate_up.weight"].shape == (12, 4)
    assert [source.tensor for source in graph.weights["l.gate_up.weight"].sources] == ["g", "u"]


def test_merged_values_keep_their_names_so_that_others_may_go_on_reading_them() -> None:
    graph = rewrite(mlp(is_gate_read_elsewhere=True), MERGE_GATE_UP)

    assert operators(graph) == ["embed", "linear", "split", "silu_mul", "add"]
    laws.check(graph, "rewriting")


def test_a_value_that_would_vanish_but_is_read_elsewhere_keeps_its_nodes() -> None:
    rule = Rule("drop_sum", FUSE_ADD_NORM.pattern, "y = rms_norm(a, w)")

    assert operators(rewrite(normed_sum(is_sum_an_output=True), rule)) == ["embed", "add", "rms_norm"]
    assert operators(rewrite(normed_sum(), rule)) == ["embed", "rms_norm"]


def test_an_attribute_goes_over_to_the_fused_operator() -> None:
    graph = rewrite(normed_sum(), FUSE_ADD_NORM)

    assert graph.nodes[-1].operator == "add_rms_norm"
    assert graph.nodes[-1].attributes == {"epsilon": 1e-5}


def test_a_rule_that_matches_nothing_gives_back_the_same_graph() -> None:
    graph = mlp()

    assert rewrite(graph, MERGE_QKV) is graph


def test_a_rule_line_that_is_no_node_is_named() -> None:
    with pytest.raises(GraphError, match="is not of the form"):
        rewrite(mlp(), Rule("bad", "y is linear of x", "y = linear(x, w, -)"))


def test_joined_names_say_what_they_join() -> None:
    assert joined_name(("layers.0.q", "layers.0.k")) == "layers.0.q_k"
    assert joined_name(("a", "b.c")) == "a_b.c"


def test_a_graph_survives_json() -> None:
    for _, graph in stages(mlp(), target_for("cpu", "bfloat16")):
        assert graph == from_json(to_json(graph))


def test_a_cast_is_put_where_a_contract_does_not_take_the_format() -> None:
    half = target_for("torch", "bfloat16")
    builder = GraphBuilder("angles")
    builder.input("positions", ("tokens",), "int32")
    builder.input("tokens", ("tokens",), "int32")
    hidden = builder.apply("embed", ("tokens", builder.weight("table", "table", (8, 4))), "hidden")
    angles = builder.apply("rope", (hidden, hidden), "turned", head_dim=4)
    graph = optimise(builder.finish((angles,)), half, level=0)

    assert operators(graph) == ["embed", "cast", "rope"]
    assert graph.nodes[-1].inputs == ("hidden", "hidden.float32")


def test_a_format_may_be_given_by_name_and_the_first_pattern_counts() -> None:
    target = target_for("cpu", "bfloat16", (("l.gate*", "float32"), ("l.*", "bfloat16")))
    graph = optimise(mlp(), target, level=0)
    formats = {name: recipe.dtype for name, recipe in graph.weights.items()}

    assert {"table": "bfloat16", "l.gate.weight": "float32", "l.up.weight": "bfloat16"} == formats


def test_a_pattern_that_names_nothing_is_refused() -> None:
    with pytest.raises(GraphError, match=r"precision 'layer\.\*' names no weight or value"):
        optimise(mlp(), target_for("cpu", "bfloat16", (("layer.*", "float32"),)))


BROKEN = {
    "reads missing before it is made": lambda g: replace(g, nodes=(Node("add", ("missing", "hidden"), ("mixed",)),)),
    "hidden is made twice": lambda g: replace(g, nodes=(g.nodes[0], *g.nodes)),
    "output nowhere is never made": lambda g: replace(g, outputs=("nowhere",)),
    "which nothing reads": lambda g: replace(g, outputs=("hidden",)),
    "weight l.up.weight is used by no node": lambda g: replace(g, nodes=g.nodes[:2], outputs=("l.gate",)),
    "missing has no shape": lambda g: replace(g, inputs=(*g.inputs, "missing")),
    "its recipe makes": lambda g: replace(g, weights={**g.weights, "table": g.weights["l.up.weight"]}),
    "shapes are not those": lambda g: replace(g, values={**g.values, "mixed": g.values["hidden"]}),
}


@pytest.mark.parametrize("sentence", BROKEN)
def test_a_broken_law_is_named(sentence: str) -> None:
    with pytest.raises(GraphError, match=sentence):
        laws.check(BROKEN[sentence](mlp()), "breaking it")


def test_reading_a_cache_from_before_its_write_breaks_a_law() -> None:
    builder = GraphBuilder("cache")
    for name, axes in (("tokens", "tokens"), ("positions", "tokens"), ("starts", "sequence_starts")):
        builder.input(name, (axes,), "int32")
    builder.input("slots", ("sequences", "max_slots"), "int32")
    batch = ("positions", "starts", "slots")
    hidden = builder.apply("embed", ("tokens", builder.weight("table", "table", (8, 4))), "hidden")
    cache = builder.stream("cache", 1, 4)
    builder.apply("kv_store", (hidden, hidden, cache, *batch), "cache'")
    out = builder.apply("attention", (hidden, cache, *batch), "out", scale=0.5)

    with pytest.raises(GraphError, match="takes cache, but cache' was made before it"):
        laws.check(builder.finish((out,)), "building")
