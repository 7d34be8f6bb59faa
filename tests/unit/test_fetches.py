"""Fetches in a graph: where the passes put them, and what the laws say of a graph that has them elsewhere."""

from dataclasses import replace

import pytest

from tests.system.tiny import FAMILIES, LIMITS, cpu_plan, graph_and_weights, small_slots, step
from trivet._native import Team
from trivet.base.errors import GraphError
from trivet.framework.graph import laws
from trivet.framework.graph.cost import step_cost
from trivet.framework.graph.cpu_plan import CpuPlan
from trivet.framework.graph.fetches import awaited_streams, fetch_streams, fetched_streams, with_fetches
from trivet.framework.graph.ir import Graph, Node
from trivet.framework.graph.passes import MAX_LEVEL

LEVELS = range(MAX_LEVEL + 1)


def fetched(family: str = "llama", level: int = MAX_LEVEL) -> Graph:
    return with_fetches(graph_and_weights(family, "bfloat16", level)[0])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_fetches_come_first_and_each_is_awaited_behind_the_store_directly_before_it_is_read(
    family: str, level: int
) -> None:
    graph = fetched(family, level)
    streams = [stream.name for stream in graph.streams]

    assert ["kv_fetch"] * len(streams) == [node.operator for node in graph.nodes[: len(streams)]]
    assert streams == list(fetched_streams(graph))
    awaited = [i for i, node in enumerate(graph.nodes) if node.operator == "kv_await"]
    assert [f"{stream}'" for stream in streams] == [graph.nodes[i].inputs[0] for i in awaited]
    assert ["attention"] * len(streams) == [graph.nodes[i + 1].operator for i in awaited]
    assert awaited_streams(graph) == {graph.nodes[i + 1].inputs[1]: number for number, i in enumerate(awaited)}


def test_before_hoisting_each_fetch_is_where_its_stream_is_first_taken() -> None:
    graph = fetch_streams(graph_and_weights("llama", "bfloat16")[0])
    places = [i for i, node in enumerate(graph.nodes) if node.operator == "kv_fetch"]

    assert all(graph.nodes[i].outputs[0] in graph.nodes[i + 1].names for i in places)
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
    f"attention takes {CACHE}', which is on its way and not awaited": lambda g: taking(
        without(g, "kv_await"), "attention", f"{CACHE}'.here", f"{CACHE}'"
    ),
    f"attention takes {CACHE}.coming, which is on its way and not awaited": lambda g: taking(
        g, "attention", f"{CACHE}'.here", f"{CACHE}.coming"
    ),
    f"attention takes {CACHE}', but {CACHE}'.here was made before it": lambda g: taking(
        g, "attention", f"{CACHE}'.here", f"{CACHE}'"
    ),
    f"kv_await takes {CACHE}', which nobody fetches": lambda g: taking(
        without(g, "kv_fetch"), "rope_kv_store", f"{CACHE}.coming", CACHE
    ),
    f"kv_fetch takes {CACHE}.coming, which is on its way and not awaited": lambda g: replace(
        g, nodes=(g.nodes[0], Node("kv_fetch", (f"{CACHE}.coming",), ("again",)), *g.nodes[1:])
    ),
    f"{CACHE}.coming is fetched and never awaited": lambda g: without(without(g, "kv_await"), "attention"),
}  # fmt: skip


@pytest.mark.parametrize("sentence", BROKEN)
def test_a_graph_that_touches_what_is_on_its_way_breaks_a_law(sentence: str) -> None:
    broken = BROKEN[sentence](fetched())

    assert sentence in [said for law in laws.LAWS[-2:] for said in law(broken)]


def test_the_laws_are_checked_after_the_passes() -> None:
    twice = fetched()
    with pytest.raises(GraphError, match=r"after fetch_streams: .*layers.0.cache.coming is made twice"):
        with_fetches(twice)


def test_what_was_awaited_is_not_bound_to_a_kernel_that_does_not_wait() -> None:
    graph, weights = graph_and_weights("llama", "bfloat16")
    streams = [stream.name for stream in graph.streams]
    here = {name: f"{name}.here" for name in streams}
    fetched = [Node("kv_fetch", (name,), (f"{name}.coming",)) for name in streams]
    awaited = [Node("kv_await", (f"{name}.coming",), (here[name],)) for name in streams]
    stored = [replace(node, inputs=tuple(here.get(str(name), name) for name in node.inputs)) for node in graph.nodes]
    versions = {f"{name}.{version}": graph.values[name] for name in streams for version in ("coming", "here")}
    early = replace(graph, nodes=(*fetched, *awaited, *stored), values={**graph.values, **versions})
    laws.check(early, "awaiting before the store")

    with pytest.raises(GraphError, match="rope_kv_store: it waits for no stream, and one is given"):
        CpuPlan(early, weights, limits=LIMITS, slots=small_slots(early), num_slots=40, team=Team([None]))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_with_fetches_and_nothing_on_its_way_computes_the_same_bits(family: str) -> None:
    batch = step([[5, 9, 200, 17], [3]], [0, 0])
    plain, waiting = (cpu_plan(family, "bfloat16", is_fetched=is_fetched) for is_fetched in (False, True))

    assert step_cost(plain.graph) == step_cost(waiting.graph)
    assert plain.run(batch).tobytes() == waiting.run(batch).tobytes()
    assert [slice(0, plain.slot_bytes)] == list(plain.pieces)
    assert len(waiting.graph.streams) == len(waiting.pieces)
