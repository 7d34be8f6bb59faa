"""The reads of outer tiers in a graph: begun as early as the laws allow, awaited as late, so that a step computes in
between. A plan that knows who reads what was awaited can begin before the first stream has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trivet.framework.graph.ir import Graph, Node, continued
from trivet.framework.graph.laws import check


def with_fetches(graph: Graph) -> Graph:
    """The graph with every stream fetched and awaited; the laws are checked after each pass."""
    for name, apply in PASSES:
        graph = apply(graph)
        check(graph, name)
    return graph


def fetch_streams(graph: Graph) -> Graph:
    """Before the first node that takes a stream, it is fetched; before the first that reads what is in it, awaited."""
    values = dict(graph.values)
    untouched = {stream.name for stream in graph.streams}
    coming: set[str] = set()  # versions of streams that were fetched and not awaited
    called: dict[str, str] = {}  # what `graph` calls otherwise
    nodes: list[Node] = []

    def insert(operator: str, name: str, suffix: str) -> None:
        source, made = called.get(name, name), f"{name}.{suffix}"
        values[made], called[name] = values[name], made
        nodes.append(Node(operator, (source,), (made,)))

    for node in graph.nodes:
        written = {source: made for made, source in continued(node)}
        for name in node.names:
            if name in untouched:
                insert("kv_fetch", name, "coming")
                untouched.remove(name)
                coming.add(name)
            if name not in coming:
                continue
            coming.remove(name)
            if name in written:
                coming.add(written[name])
            else:
                insert("kv_await", name, "here")
        inputs = tuple(name if name is None else called.get(name, name) for name in node.inputs)
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


def fetched_streams(graph: Graph) -> tuple[str, ...]:
    """The streams in the order in which they are fetched."""
    return tuple(str(node.inputs[0]) for node in graph.nodes if node.operator == "kv_fetch")


def awaited_streams(graph: Graph) -> dict[str, int]:
    """What a `kv_await` makes → the place of its stream among `fetched_streams`."""
    places = {name: place for place, name in enumerate(fetched_streams(graph))}
    for node in graph.nodes:
        places.update({made: places[source] for made, source in continued(node) if source in places})
    return {node.outputs[0]: places[node.outputs[0]] for node in graph.nodes if node.operator == "kv_await"}


PASSES: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("fetch_streams", fetch_streams),
    ("hoist_fetches", hoist_fetches),
)
