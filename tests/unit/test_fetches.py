"""Fetches in a graph: where the passes put them, and what the laws say of a graph that has them elsewhere."""

from dataclasses import replace

import pytest

from tests.system.tiny import FAMILIES, cpu_plan, graph_and_weights, step
from trivet.base.errors import GraphError
from trivet.framework.graph import laws
from trivet.framework.graph.cost import step_cost
from trivet.framework.graph.fetches import fetch_streams, fetched_streams, with_fetches
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.passes import MAX_LEVEL

LEVELS = range(MAX_LEVEL + 1)


def fetched(family: str = "llama", level: int = MAX_LEVEL) -> Graph:
    return with_fetches(graph_and_weights(family, "bfloat16", level)[0])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_fetches_come_first_and_each_is_awaited_directly_before_its_layer_touches_the_cache(
    family: str, level: int
) -> None:
    graph = fetched(family, level)
    streams = [stream.name for stream in graph.streams]

    assert ["kv_fetch"] * len(streams) == [node.operator for node in graph.nodes[: len(streams)]]
    assert streams == list(fetched_streams(graph).values())
    awaited = [i for i, node in enumerate(graph.nodes) if node.operator == "kv_await"]
    assert streams == [fetched_streams(graph)[str(graph.nodes[i].inputs[0])] for i in awaited]
    assert all(graph.nodes[i].outputs[0] in graph.nodes[i + 1].names for i in awaited)


def test_before_hoisting_each_fetch_is_where_it_is_awaited() -> None:
    graph = fetch_streams(graph_and_weights("llama", "bfloat16")[0])
    places = [i for i, node in enumerate(graph.nodes) if node.operator == "kv_fetch"]

    assert all(graph.nodes[i + 1].operator == "kv_await" for i in places)
    assert places[0] > 0


def taking(graph: Graph, operator: str, before: str, after: str) -> Graph:
    """The graph with the first node of the operator taking another version of a cache."""
    at = next(i for i, node in enumerate(graph.nodes) if node.operator == operator)
    inputs = tuple(after if name == before else name for name in graph.nodes[at].inputs)
    nodes = (*graph.nodes[:at], replace(graph.nodes[at], inputs=inputs), *graph.nodes[at + 1 :])
    return replace(graph, nodes=nodes)


def without(graph: Graph, operator: str) -> Graph:
    first = next(node for node in graph.nodes if node.operator == operator)
    return replace(graph, nodes=tuple(node for node in graph.nodes if node is not first))


CACHE = "layers.0.cache"
BROKEN = {
    f"rope_kv_store takes {CACHE}.coming, which is on its way and not awaited": lambda g: taking(
        without(g, "kv_await"), "rope_kv_store", f"{CACHE}.here", f"{CACHE}.coming"
    ),
    f"attention takes {CACHE}.coming, but {CACHE}' was made before it": lambda g: taking(
        g, "attention", f"{CACHE}'", f"{CACHE}.coming"
    ),
    f"kv_await takes {CACHE}, which nobody fetches": lambda g: taking(
        without(g, "kv_fetch"), "kv_await", f"{CACHE}.coming", CACHE
    ),
    f"{CACHE}.coming is fetched and never awaited": lambda g: replace(
        g, nodes=tuple(node for node in g.nodes if not set(node.outputs) & {f"{CACHE}.here", f"{CACHE}'"}
                       and f"{CACHE}'" not in node.names and "layers.0.mixed" not in node.names), outputs=(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", BROKEN)
def test_a_graph_that_touches_what_is_on_its_way_breaks_a_law(sentence: str) -> None:
    broken = BROKEN[sentence](fetched())

    assert sentence in [said for law in laws.LAWS[-2:] for said in law(broken)]


def test_the_laws_are_checked_after_the_passes() -> None:
    twice = fetched()
    with pytest.raises(GraphError, match=r"after fetch_streams: .*layers.0.cache.coming is made twice"):
        with_fetches(twice)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_with_fetches_and_nothing_on_its_way_computes_the_same_bits(family: str) -> None:
    batch = step([[5, 9, 200, 17], [3]], [0, 0])
    plain, waiting = (cpu_plan(family, "bfloat16", is_fetched=is_fetched) for is_fetched in (False, True))

    assert step_cost(plain.graph) == step_cost(waiting.graph)
    assert plain.run(batch).tobytes() == waiting.run(batch).tobytes()
    assert [slice(0, plain.slot_bytes)] == list(plain.pieces)
    assert len(waiting.graph.streams) == len(waiting.pieces)
