"""Pattern → replacement. A rule is two short texts; the engine finds, checks and rewrites.

    pattern                     replacement
        s = add(a, b)               s, y = add_rms_norm(a, b, w)
        y = rms_norm(s, w)

A variable stands for one value everywhere in the rule; `-` for an absent input. A replacement may make a weight out of
others (`w = concatenate(wq, wk, wv)`). Attributes go over by name to the operators that declare them. A match is left
alone when a value that the replacement no longer makes is used elsewhere.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from trivet.base.errors import GraphError
from trivet.framework.graph.ir import Graph, Node, used_weights
from trivet.framework.graph.recipe import concatenate
from trivet.operators.contract import Attribute, TensorSpec, operator_named, resolve

_LINE = re.compile(r"(?P<outputs>[\w, ]+)= *(?P<operator>\w+)\((?P<inputs>[\w\-, ]*)\)")


@dataclass(frozen=True)
class Template:
    """A node of a rule: an operator over variables."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """A pattern, and what stands in its place."""

    name: str
    pattern: str
    replacement: str

    @cached_property
    def pattern_nodes(self) -> tuple[Template, ...]:
        return _parse(self.pattern)

    @cached_property
    def replacement_nodes(self) -> tuple[Template, ...]:
        return _parse(self.replacement)


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """The graph with every match of `rule` replaced; the same graph where nothing matches."""
    readers: dict[str, list[int]] = defaultdict(list)
    for i, node in enumerate(graph.nodes):
        for name in node.names:
            readers[name].append(i)
    edit = _Edit(graph)
    taken: set[int] = set()
    for match in _matches(graph, rule, readers):
        if taken.isdisjoint(match.nodes) and _is_self_contained(graph, rule, readers, match):
            taken.update(match.nodes)
            edit.apply(rule, match)
    return edit.finish() if taken else graph


def joined_name(names: tuple[str, ...]) -> str:
    """One name for what several made: `layers.0.q`, `layers.0.k` → `layers.0.q_k`."""
    parts = [name.split(".") for name in names]
    if len({len(part) for part in parts}) != 1:
        return "_".join(names)
    columns = (tuple(dict.fromkeys(column)) for column in zip(*parts, strict=True))
    return ".".join("_".join(column) for column in columns)


@dataclass(frozen=True)
class _Match:
    """Where a pattern was found, and what its variables stand for."""

    nodes: tuple[int, ...]  # positions in graph.nodes, in the order of the pattern
    values: Mapping[str, str]  # variable → value
    attributes: Mapping[str, Attribute]


def _parse(text: str) -> tuple[Template, ...]:
    templates = []
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _LINE.fullmatch(line)
        if match is None:
            raise GraphError(f"rule line {line!r} is not of the form: y, z = operator(a, b)")
        inputs, outputs = (
            tuple(part.strip() for part in match[group].split(",") if part.strip()) for group in ("inputs", "outputs")
        )
        templates.append(Template(match["operator"], inputs, outputs))
    return tuple(templates)


def _matches(graph: Graph, rule: Rule, readers: Mapping[str, list[int]]) -> Iterator[_Match]:
    yield from _extend(graph, rule, readers, _Match((), {}, {}), range(len(graph.nodes)))


def _extend(
    graph: Graph, rule: Rule, readers: Mapping[str, list[int]], match: _Match, candidates: Iterable[int]
) -> Iterator[_Match]:
    """Every way to match the next node of the pattern with one of `candidates`, and the rest after it."""
    template = rule.pattern_nodes[len(match.nodes)]
    for i in candidates:
        longer = _unify(template, graph.nodes[i], i, match)
        if longer is None:
            continue
        if len(longer.nodes) == len(rule.pattern_nodes):
            yield longer
            continue
        following = rule.pattern_nodes[len(longer.nodes)]
        shared = next((name for name in following.inputs if name in longer.values), None)
        # A pattern may go on at a node that shares nothing yet (the other rope): then any node may be it.
        onward = range(i + 1, len(graph.nodes)) if shared is None else readers[longer.values[shared]]
        yield from _extend(graph, rule, readers, longer, onward)


def _unify(template: Template, node: Node, index: int, match: _Match) -> _Match | None:
    """`match` with `node` as its next, or None. Nodes match in run order, so that siblings are found once."""
    if template.operator != node.operator or (match.nodes and index <= match.nodes[-1]):
        return None
    if len(template.inputs) != len(node.inputs) or len(template.outputs) != len(node.outputs):
        return None
    values, attributes = dict(match.values), dict(match.attributes)
    for variable, name in zip((*template.inputs, *template.outputs), (*node.inputs, *node.outputs), strict=True):
        if (variable == "-") != (name is None):
            return None
        if name is not None and values.setdefault(variable, name) != name:
            return None
    for key, value in node.attributes.items():
        if attributes.setdefault(key, value) != value:
            return None
    return _Match((*match.nodes, index), values, attributes)


def _is_self_contained(graph: Graph, rule: Rule, readers: Mapping[str, list[int]], match: _Match) -> bool:
    """Whether nothing outside the match reads a value that the replacement no longer makes."""
    made = {match.values[name] for template in rule.pattern_nodes for name in template.outputs}
    kept = {match.values.get(name) for template in rule.replacement_nodes for name in template.outputs}
    gone = made - kept
    return gone.isdisjoint(graph.outputs) and all(i in match.nodes for name in gone for i in readers[name])


class _Edit:
    """A graph being rewritten: nodes keyed by their place, until they are put in run order again."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes: dict[tuple[int, int], Node] = {(i, 0): node for i, node in enumerate(graph.nodes)}
        self._values = dict(graph.values)
        self._weights = dict(graph.weights)

    def apply(self, rule: Rule, match: _Match) -> None:
        for i in match.nodes:
            del self._nodes[i, 0]
        names = dict(match.values)
        # What a replacement makes only for a node of its own is named after what that node makes.
        for template in reversed(rule.replacement_nodes):
            for variable in template.inputs:
                if variable != "-" and variable not in names and template.operator != "concatenate":
                    names.setdefault(variable, joined_name(tuple(names[name] for name in template.outputs)))
        for step, template in enumerate(rule.replacement_nodes):
            if template.operator == "concatenate":
                names[template.outputs[0]] = self._concatenate(tuple(names[name] for name in template.inputs))
                continue
            self._add((match.nodes[0], step), template, names, match.attributes)

    def finish(self) -> Graph:
        nodes = _in_run_order(self._nodes)
        known = {name for node in nodes for name in (*node.names, *node.outputs)}
        known |= set(self._graph.inputs) | set(self._graph.outputs) | set(self._weights)
        values = {name: spec for name, spec in self._values.items() if name in known}
        return used_weights(replace(self._graph, nodes=nodes, values=values, weights=self._weights))

    def _concatenate(self, weights: tuple[str, ...]) -> str:
        name = joined_name(weights)
        recipe = concatenate(tuple(self._weights[weight] for weight in weights))
        self._weights[name] = recipe
        self._values[name] = TensorSpec(recipe.shape, recipe.dtype, recipe.layout)
        return name

    def _add(
        self, place: tuple[int, int], template: Template, names: Mapping[str, str], matched: Mapping[str, Attribute]
    ) -> None:
        operator = operator_named(template.operator)
        inputs = tuple(None if name == "-" else names[name] for name in template.inputs)
        outputs = tuple(names[name] for name in template.outputs)
        attributes = {key: matched[key] for key in operator.attributes if key in matched}
        if operator.is_view:
            attributes["widths"] = tuple(resolve(self._values[name].axes[1], {}) for name in outputs)
        specs = tuple(None if name is None else self._values[name] for name in inputs)
        self._values.update(zip(outputs, operator.output_specs(specs, attributes), strict=True))
        self._nodes[place] = Node(template.operator, inputs, outputs, attributes)


def _in_run_order(nodes: Mapping[tuple[int, int], Node]) -> tuple[Node, ...]:
    """The nodes so that each comes after what it reads, otherwise in the order of their places."""
    maker = {name: place for place, node in nodes.items() for name in node.outputs}
    waits_for = {place: {maker[name] for name in node.names if name in maker} for place, node in nodes.items()}
    wakes: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for place, makers in waits_for.items():
        for other in makers:
            wakes[other].append(place)
    ready = [place for place, makers in waits_for.items() if not makers]
    heapq.heapify(ready)
    ordered = []
    while ready:
        place = heapq.heappop(ready)
        ordered.append(nodes[place])
        for other in wakes[place]:
            waits_for[other].discard(place)
            if not waits_for[other]:
                heapq.heappush(ready, other)
    assert len(ordered) == len(nodes), "a rewrite made a circle"
    return tuple(ordered)
