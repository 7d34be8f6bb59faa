"""The calls of torch_npu that a source makes, read from its syntax tree: nothing is imported and nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_NO_OPERATORS = (["get_npu_format"],)  # Python of the wheel, without a schema


@dataclass(frozen=True)
class CallSite:
    operator: str  # the attribute of torch_npu that is called, with its overload where that is named
    where: str  # file and line
    given: Mapping[str, ast.expr]  # arguments by name; constants of the module stand as their values
    has_unnamed: bool  # by place, or by * or **, which cannot be read here


def calls_under(folder: Path) -> list[CallSite]:
    """Every call of torch_npu in the Python files under `folder`."""
    paths = sorted(folder.rglob("*.py"))
    return [call for path in paths for call in calls_in(path.read_text(), str(path.relative_to(folder)))]


def calls_in(source: str, path: str) -> list[CallSite]:
    tree = ast.parse(source)
    constants, dictionaries = dict(_constants(tree)), dict(_dictionaries(tree))
    sites = []
    for node in ast.walk(tree):
        operator = _operator(node.func) if isinstance(node, ast.Call) else None
        if not isinstance(node, ast.Call) or operator is None:
            continue
        given = {word.arg: word.value for word in node.keywords if word.arg is not None}
        spread = [_called(word.value) for word in node.keywords if word.arg is None]
        for name in spread:
            given |= dictionaries.get(name, {})
        sites.append(
            CallSite(
                operator=operator,
                where=f"{path}:{node.lineno}",
                given={name: _Constants(constants).visit(value) for name, value in given.items()},
                has_unnamed=bool(node.args) or any(name not in dictionaries for name in spread),
            )
        )
    return sites


def _operator(function: ast.expr) -> str | None:
    """`npu_x` of torch_npu.npu_x, `npu_x.out` of its overload, None of what is no operator of torch_npu."""
    names: list[str] = []
    while isinstance(function, ast.Attribute):
        names.insert(0, function.attr)
        function = function.value
    is_ours = isinstance(function, ast.Name) and function.id == "torch_npu" and names[:1] not in _NO_OPERATORS
    return ".".join(names) if is_ours else None


def _called(value: ast.expr) -> str:
    """`f` of a call f(…) or x.f(…)."""
    function = value.func if isinstance(value, ast.Call) else value
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _dictionaries(tree: ast.Module) -> Iterator[tuple[str, dict[str, ast.expr]]]:
    """Functions that do nothing but give a dictionary of named values: `**f(…)` stands for them."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or not isinstance(function.body[-1], ast.Return):
            continue
        returned = function.body[-1].value
        keys = returned.keys if isinstance(returned, ast.Dict) else []
        if isinstance(returned, ast.Dict) and all(isinstance(key, ast.Constant) for key in keys):
            names = (str(key.value) for key in keys if isinstance(key, ast.Constant))
            yield function.name, dict(zip(names, returned.values, strict=True))


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
