"""The reads of outer tiers in a graph: begun as early as the laws allow, awaited as late, so that a step computes in
between. A plan that knows where each stream is awaited can begin before the last one has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trivet.framework.graph.ir import Graph, Node
from trivet.framework.graph.laws import check


def with_fetches(graph: Graph) -> Graph:
    """The graph with every stream fetched and awaited; the laws are checked after each pass."""
    for name, apply in PASSES:
        graph = apply(graph)
        check(graph, name)
    return graph


def fetch_streams(graph: Graph) -> Graph:
    """Before the first node that takes a stream, it is fetched and awaited."""
    values = dict(graph.values)
    untouched = {stream.name for stream in graph.streams}
    nodes: list[Node] = []
    for node in graph.nodes:
        here: dict[str, str] = {}
        for name in untouched.intersection(node.names):
            coming, here[name] = f"{name}.coming", f"{name}.here"
            values[coming] = values[here[name]] = values[name]
            nodes += [Node("kv_fetch", (name,), (coming,)), Node("kv_await", (coming,), (here[name],))]
        untouched -= set(here)
        inputs = tuple(name if name is None else here.get(name, name) for name in node.inputs)
        nodes.append(replace(node, inputs=inputs))
    return replace(graph, nodes=tuple(nodes), values=values)


def hoist_fetches(graph: Graph) -> Graph:
    """Every fetch directly behind what makes its stream: a stream that no node makes is fetched before all nodes.

    Their order stays, which is that of need.
    """
    made = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs}

    def place(item: tuple[int, Node]) -> tuple[int, bool]:
        index, node = item
        if node.operator != "kv_fetch":
            return index, False
        return max((made.get(name, -1) for name in node.names), default=-1), True

    ordered = sorted(enumerate(graph.nodes), key=place)
    return replace(graph, nodes=tuple(node for _, node in ordered))


def fetched_streams(graph: Graph) -> dict[str, str]:
    """What a `kv_await` takes → the stream that comes, in the order in which they are fetched."""
    return {node.outputs[0]: str(node.inputs[0]) for node in graph.nodes if node.operator == "kv_fetch"}


PASSES: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("fetch_streams", fetch_streams),
    ("hoist_fetches", hoist_fetches),
)
