"""What a decode asks for ahead, from the graph alone."""

from tests.system.tiny import graph_and_weights
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.prefetch import Prefetch, prefetches


def llama() -> Graph:
    return graph_and_weights("llama", "bfloat16")[0]


def test_each_matrix_is_asked_for_behind_the_product_before_it() -> None:
    graph = llama()
    products = [node for node in graph.nodes if node.operator == "linear"]
    asked = prefetches(graph, max_bytes=1 << 30)

    assert [node.outputs[0] for node in products[:-1]] == [one.behind for one in asked]
    assert [node.inputs[1] for node in products[1:]] == [one.weight for one in asked]


def test_a_large_matrix_is_asked_for_in_part_and_nothing_where_nothing_may_be() -> None:
    assert {1000} == {one.num_bytes for one in prefetches(llama(), max_bytes=1000)}
    assert () == prefetches(llama(), max_bytes=0)


def test_a_product_right_behind_another_is_not_asked_for() -> None:
    graph = llama()
    first, second = [node for node in graph.nodes if node.operator == "linear"][:2]
    adjacent = Graph(graph.name, graph.inputs, graph.outputs, (first, second), graph.values, graph.weights, ())

    assert () == prefetches(adjacent, max_bytes=1000)


def test_a_prefetch_says_what_behind_what_and_how_much() -> None:
    assert Prefetch("layers.0.q_k_v", "layers.0.o.weight", 64 * 64 * 2) == prefetches(llama(), 1 << 30)[0]
