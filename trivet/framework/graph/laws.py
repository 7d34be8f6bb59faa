"""What must hold of every graph, before and after every pass. Each law yields a sentence for each way it is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trivet.base.errors import GraphError
from trivet.framework.graph.ir import Graph, continued
from trivet.operators.contract import operator_named

Law = Callable[[Graph], Iterator[str]]


def defined_once_and_before_use(graph: Graph) -> Iterator[str]:
    known = set(graph.inputs) | set(graph.weights)
    for node in graph.nodes:
        for name in node.names:
            if name not in known:
                yield f"{node.operator} reads {name} before it is made"
        for name in node.outputs:
            if name in known:
                yield f"{name} is made twice"
            known.add(name)
    for name in graph.outputs:
        if name not in known:
            yield f"output {name} is never made"
    for name in sorted(known - set(graph.values)):
        yield f"{name} has no shape"


def every_value_is_used(graph: Graph) -> Iterator[str]:
    used = {name for node in graph.nodes for name in node.names} | set(graph.outputs)
    written = {made for node in graph.nodes for made, _ in continued(node)}
    for node in graph.nodes:
        if not any(name in used or name in written for name in node.outputs):
            yield f"{node.operator} makes {', '.join(node.outputs)}, which nothing reads"
    for name in graph.weights:
        if name not in used:
            yield f"weight {name} is used by no node"


def contracts_hold(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        operator, call = operator_named(node.operator), graph.call(node)
        try:
            wanted = operator.output_specs(call.inputs, node.attributes)
        except GraphError as error:
            yield f"{', '.join(node.outputs)}: {error.message}"
            continue
        if [spec.axes for spec in wanted] != [spec.axes for spec in call.outputs]:
            yield f"{', '.join(node.outputs)}: shapes are not those that {node.operator} makes"
        arguments = (*operator.inputs, *operator.outputs)
        for argument, spec in zip(arguments, (*call.inputs, *call.outputs), strict=False):
            if spec is not None and spec.dtype is not None and spec.dtype not in argument.dtypes:
                yield f"{node.outputs[0]}: {argument.name} of {node.operator} is {spec.dtype}, not {argument.dtypes}"
            if spec is not None and spec.layout not in argument.layouts:
                yield f"{node.outputs[0]}: {argument.name} of {node.operator} lies in {spec.layout}"


def recipes_make_their_weights(graph: Graph) -> Iterator[str]:
    for name, recipe in graph.weights.items():
        spec = graph.values[name]
        if (recipe.shape, recipe.dtype, recipe.layout) != (spec.axes, spec.dtype, spec.layout):
            yield f"weight {name} is {spec}, its recipe makes {recipe.shape} {recipe.dtype} {recipe.layout}"


def streams_are_what_their_caches_hold(graph: Graph) -> Iterator[str]:
    """The pool is cut by the streams, and written to by the shapes of the caches."""
    for stream in graph.streams:
        axes = graph.values[stream.name].axes if stream.name in graph.inputs else ()
        if axes != ("num_slots", "slot_tokens", 2, stream.num_heads, stream.head_dim):
            yield f"stream {stream.name} is of {stream.num_heads} heads of {stream.head_dim}, its cache is {axes}"


def caches_are_read_after_their_write(graph: Graph) -> Iterator[str]:
    """Every reader of a stream takes its newest version; only the next write may take an older one."""
    newest = {stream.name: stream.name for stream in graph.streams}
    stream_of = {stream.name: stream.name for stream in graph.streams}
    for node in graph.nodes:
        for name in node.names:
            if name in stream_of and newest[stream_of[name]] != name:
                yield f"{node.operator} takes {name}, but {newest[stream_of[name]]} was made before it"
        for made, source in continued(node):
            stream_of[made] = stream_of[source]
            newest[stream_of[source]] = made


def what_is_fetched_is_awaited(graph: Graph) -> Iterator[str]:
    """Between its fetch and its `kv_await` nobody reads a stream: blocks are coming to its slots. An operator may write
    to it, for what a step stores lies behind them, and what that makes is still on its way."""
    fetched_as: dict[str, str] = {}  # versions of streams that are on their way → what their fetch made
    awaited = set[str]()
    for node in graph.nodes:
        made_of = {source: made for made, source in continued(node)}
        for name in node.names:
            if node.operator == "kv_await" and name in fetched_as:
                awaited.add(fetched_as[name])
            elif node.operator == "kv_await":
                yield f"kv_await takes {name}, which nobody fetches"
            elif name in fetched_as and (node.operator == "kv_fetch" or name not in made_of):
                yield f"{node.operator} takes {name}, which is on its way and not awaited"
            elif name in fetched_as:
                fetched_as[made_of[name]] = fetched_as[name]
        if node.operator == "kv_fetch":
            fetched_as.update({name: name for name in node.outputs})
    for name in sorted(set(fetched_as.values()) - awaited):
        yield f"{name} is fetched and never awaited"


LAWS: tuple[Law, ...] = (
    defined_once_and_before_use,
    contracts_hold,
    every_value_is_used,
    recipes_make_their_weights,
    streams_are_what_their_caches_hold,
    caches_are_read_after_their_write,
    what_is_fetched_is_awaited,
)


def check(graph: Graph, after: str) -> None:
    """Raises GraphError with what breaks the first law that does not hold; `after` names what made the graph.

    A law may rely on those before it: shapes cannot be compared of names that nothing makes.
    """
    for law in LAWS:
        broken = list(law(graph))
        if broken:
            more = f"\n  and {len(broken) - 5} more" if len(broken) > 5 else ""
            raise GraphError(f"graph {graph.name} after {after}: " + "\n  ".join(broken[:5]) + more)
