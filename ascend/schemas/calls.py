"""The calls of torch_npu that a source makes, read from its syntax tree: nothing is imported and nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CallSite:
    operator: str  # the attribute of torch_npu that is called
    where: str  # file and line
    given: Mapping[str, ast.expr]  # arguments by name; constants of the module stand as their values
    has_unnamed: bool  # by place, or by * or **, which cannot be read here


def calls_under(folder: Path) -> list[CallSite]:
    """Every call of torch_npu in the Python files under `folder`."""
    paths = sorted(folder.rglob("*.py"))
    return [call for path in paths for call in calls_in(path.read_text(), str(path.relative_to(folder)))]


def calls_in(source: str, path: str) -> list[CallSite]:
    tree = ast.parse(source)
    constants = dict(_constants(tree))
    return [
        CallSite(
            operator=node.func.attr,
            where=f"{path}:{node.lineno}",
            given={word.arg: _Constants(constants).visit(word.value) for word in node.keywords if word.arg is not None},
            has_unnamed=bool(node.args) or any(word.arg is None for word in node.keywords),
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch_npu"
    ]


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names that the module binds to a literal at its top, alone or several in one line."""
    for statement in tree.body:
        if not isinstance(statement, ast.Assign):
            continue
        target, value = statement.targets[0], statement.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=True))
        for name, bound in pairs:
            if isinstance(name, ast.Name) and isinstance(bound, ast.Constant):
                yield name.id, bound


class _Constants(ast.NodeTransformer):
    """Puts the module's constants where their names stand."""

    def __init__(self, constants: Mapping[str, ast.expr]) -> None:
        self._constants = constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._constants.get(node.id, node)
