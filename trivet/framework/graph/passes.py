"""The passes that turn what a family wrote into what a device runs. Passes are data: rules in a PIPELINE with levels.

Fusing never changes an answer: each fused operator computes what its parts did, in the same order. Level 0 runs
only what is needed to execute at all; 1 merges weights that read the same input; 2 fuses operators; 3 fuses what is
stored in the cache with the storing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from trivet.base.dtypes import DType
from trivet.base.errors import GraphError
from trivet.driver.devices.device import DeviceName
from trivet.framework.graph.ir import Graph, Node, continued
from trivet.framework.graph.laws import check
from trivet.framework.graph.rewrite import Rule, rewrite
from trivet.operators.contract import Argument, Layout, TensorSpec, operator_named, with_dtype

MAX_LEVEL = 3


@dataclass(frozen=True)
class Target:
    """What a graph is made for: the formats a model is kept and computed in, and how the device wants it to lie."""

    device: DeviceName
    matrices: DType  # the weights that linears multiply with, a table tied to the head among them
    weights: DType  # the others, where their contract leaves the choice
    cache: DType
    activations: DType
    linear_layout: Layout  # of the weights that linears read
    cache_layout: Layout
    # Formats by name, as shell patterns of weights and values: the first that matches counts.
    overrides: tuple[tuple[str, DType], ...] = ()

    def override(self, name: str) -> DType | None:
        return next((dtype for pattern, dtype in self.overrides if fnmatchcase(name, pattern)), None)


def target_for(
    device: DeviceName,
    dtype: DType,
    overrides: tuple[tuple[str, DType], ...] = (),
    matrices: DType | None = None,
) -> Target:
    """The target whose weights and cache are in `dtype`, bfloat16 or float32, but for what `overrides` name.

    `matrices` int8 keeps what linears multiply with in int8, the head among them: it is a fifth of SmolLM2's bytes, and
    in int8 it moved perplexity by less than 0.1 %. A table that only the embedding reads stays in `dtype`: a token
    reads one row of it, so that fewer bytes would gain no speed.

    Between operators the CPU keeps float32, and products round what they take: its sums are float32 anyway, and the
    rows are few. Other devices move activations through memory, in `dtype` where a contract leaves the choice.
    """
    if device == "cpu":
        return Target(device, matrices or dtype, dtype, dtype, "float32", "panels", "kv", overrides)
    return Target(device, matrices or dtype, dtype, dtype, dtype, "rows", "blocks", overrides)


@dataclass(frozen=True)
class Pass:
    """A named step from graph to graph, run at `level` and above."""

    name: str
    level: int
    apply: Callable[[Graph, Target], Graph]


MERGE_QKV = Rule(
    "merge_qkv",
    """q = linear(x, wq, -)
       k = linear(x, wk, -)
       v = linear(x, wv, -)""",
    """w = concatenate(wq, wk, wv)
       y = linear(x, w, -)
       q, k, v = split(y)""",
)
MERGE_BIASED_QKV = Rule(
    "merge_biased_qkv",
    """q = linear(x, wq, bq)
       k = linear(x, wk, bk)
       v = linear(x, wv, bv)""",
    """w = concatenate(wq, wk, wv)
       b = concatenate(bq, bk, bv)
       y = linear(x, w, b)
       q, k, v = split(y)""",
)
MERGE_GATE_UP = Rule(
    "merge_gate_up",
    """g = linear(x, wg, -)
       u = linear(x, wu, -)
       m = silu_mul(g, u)""",
    """w = concatenate(wg, wu)
       y = linear(x, w, -)
       g, u = split(y)
       m = silu_mul(g, u)""",
)
FUSE_ADD_NORM = Rule(
    "fuse_add_norm",
    """s = add(a, b)
       y = rms_norm(s, w)""",
    """s, y = add_rms_norm(a, b, w)""",
)
FUSE_ROPE_KV = Rule(
    "fuse_rope_kv",
    """r = rope(q, angles)
       t = rope(k, angles)
       after = kv_store(t, v, before, positions, starts, slots)""",
    """r, after = rope_kv_store(q, k, v, angles, before, positions, starts, slots)""",
)


def optimise(graph: Graph, target: Target, level: int = MAX_LEVEL) -> Graph:
    """The graph after every pass of the PIPELINE up to `level`; the laws are checked before and after each."""
    *_, (_, optimised) = stages(graph, target, level)
    return optimised


def stages(graph: Graph, target: Target, level: int = MAX_LEVEL) -> Iterator[tuple[str, Graph]]:
    """(name, graph) as the family wrote it, then after each pass."""
    if not 0 <= level <= MAX_LEVEL:
        raise GraphError(f"level {level} is not between 0 and {MAX_LEVEL}")
    check(graph, "building")
    yield "built", graph
    for step in PIPELINE:
        if step.level <= level:
            graph = step.apply(graph, target)
            check(graph, step.name)
            yield step.name, graph


def keep_cache(graph: Graph, dtype: DType) -> Graph:
    """The optimised graph with its keys and values in another format, which changes no weight and no node."""
    caches = {stream.name for stream in graph.streams}
    caches.update(made for node in graph.nodes for made, _ in continued(node))
    values = {name: with_dtype(spec, dtype) if name in caches else spec for name, spec in graph.values.items()}
    kept = replace(graph, values=values)
    check(kept, "keep_cache")
    return kept


def _rules(*rules: Rule) -> Callable[[Graph, Target], Graph]:
    def apply(graph: Graph, target: Target) -> Graph:
        for rule in rules:
            graph = rewrite(graph, rule)
        return graph

    return apply


def assign_precision(graph: Graph, target: Target) -> Graph:
    """Gives every value its format; where a contract does not take what it would be given, a cast is put in between."""
    values = dict(graph.values)
    weights = dict(graph.weights)
    nodes: list[Node] = []
    _check_overrides(graph, target)
    matrices = {str(node.inputs[1]) for node in graph.nodes if node.operator == "linear"}
    for stream in graph.streams:
        values[stream.name] = with_dtype(values[stream.name], target.cache)
    for node in graph.nodes:
        contract = operator_named(node.operator)
        inputs: list[str | None] = []
        for argument, name in zip(contract.inputs, node.inputs, strict=True):
            if name is not None and name in weights and values[name].dtype is None:
                usual = target.matrices if name in matrices else target.weights
                dtype = _allowed(argument, target.override(name) or usual)
                values[name] = with_dtype(values[name], dtype)
                weights[name] = replace(weights[name], dtype=dtype)
            inputs.append(name if name is None else _cast_for(argument, name, values, nodes))
        for argument, name in zip(contract.outputs, node.outputs, strict=False):
            source = contract.updates.get(argument.name)
            if source is not None:
                dtype = target.cache
            elif contract.is_view:
                dtype = values[str(inputs[0])].dtype or target.activations
            else:
                made: DType = "float32" if name in graph.outputs else target.activations
                dtype = _allowed(argument, target.override(name) or made)
            values[name] = with_dtype(values[name], dtype)
        nodes.append(replace(node, inputs=tuple(inputs)))
    return replace(graph, nodes=tuple(nodes), values=values, weights=weights)


def _check_overrides(graph: Graph, target: Target) -> None:
    """A pattern that names nothing is a mistake, not a wish that happens to be fulfilled."""
    for pattern, _ in target.overrides:
        if not any(fnmatchcase(name, pattern) for name in graph.values):
            raise GraphError(
                f"precision {pattern!r} names no weight or value of {graph.name}",
                "see the names with: trivet graph MODEL --after fuse_rope_kv",
            )


def _allowed(argument: Argument, wanted: DType) -> DType:
    return wanted if wanted in argument.dtypes else argument.dtypes[0]


def _cast_for(argument: Argument, name: str, values: dict[str, TensorSpec], nodes: list[Node]) -> str:
    """`name`, or the name of its cast to a format that `argument` takes."""
    spec = values[name]
    if spec.dtype in argument.dtypes:
        return name
    dtype = argument.dtypes[0]
    made = f"{name}.{dtype}"
    if made not in values:
        values[made] = with_dtype(spec, dtype)
        nodes.append(Node("cast", (name,), (made,)))
    return made


def lay_out(graph: Graph, target: Target) -> Graph:
    """Lays what linears read, and the caches, as the device wants it. A table shared with the embedding stays one."""
    layouts: dict[str, Layout] = {stream.name: target.cache_layout for stream in graph.streams}
    for node in graph.nodes:
        if node.operator == "linear":
            layouts[str(node.inputs[1])] = target.linear_layout
        layouts.update({made: layouts[before] for made, before in continued(node)})
    values = {name: replace(spec, layout=layouts.get(name, spec.layout)) for name, spec in graph.values.items()}
    weights = {name: replace(made, layout=layouts.get(name, made.layout)) for name, made in graph.weights.items()}
    return replace(graph, values=values, weights=weights)


PIPELINE: tuple[Pass, ...] = (
    Pass("merge_qkv", 1, _rules(MERGE_QKV, MERGE_BIASED_QKV)),
    Pass("merge_gate_up", 1, _rules(MERGE_GATE_UP)),
    Pass("fuse_add_norm", 2, _rules(FUSE_ADD_NORM)),
    Pass("fuse_rope_kv", 3, _rules(FUSE_ROPE_KV)),
    Pass("assign_precision", 0, assign_precision),
    Pass("lay_out", 0, lay_out),
)
