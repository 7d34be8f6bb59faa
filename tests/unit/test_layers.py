"""The drawing in docs/develop/architecture.md holds: a module imports from its own layer and from those below it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "trivet"

# Bottom to top. A package's layer is that of its longest prefix here.
LAYERS = (
    ("trivet.base",),
    ("trivet.driver",),
    ("trivet.operators",),
    ("trivet.framework.memory",),
    ("trivet.framework.graph",),
    ("trivet.framework.model",),
    ("trivet.framework.engine",),
    ("trivet.serve",),
    ("trivet.cli",),
)
# The package's own front door exports the engine's names lazily; the compiled kernels import nothing.
FRONT_DOOR = ("trivet", "trivet._native")


def layer_of(module: str) -> int:
    for number, names in enumerate(LAYERS):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return number
    raise AssertionError(f"{module} is in no layer of the drawing")


def imports_of(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if name == "trivet" or name.startswith("trivet.")]


def upward_imports(module: str, source: str) -> list[str]:
    here = layer_of(module)
    return [name for name in imports_of(source) if name not in FRONT_DOOR and layer_of(name) > here]


def modules() -> list[tuple[str, Path]]:
    paths = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
    names = [".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return [(name, path) for name, path in zip(names, paths, strict=True) if name != "trivet.framework"]


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_arrows_point_down(module: str, path: Path) -> None:
    assert upward_imports(module, path.read_text()) == []


def test_a_planted_upward_import_is_caught() -> None:
    planted = "from trivet.framework.engine.engine import Engine\n"

    assert upward_imports("trivet.operators.norm", planted) == ["trivet.framework.engine.engine"]


# What may need PyTorch or Triton: imported only when their device is asked for.
EXTRAS = (
    "trivet.driver.devices.torch_",
    "trivet.framework.graph.npu_",
    "trivet.framework.graph.torch_",
    "trivet.operators.npu",
    "trivet.operators.torch",
    "trivet.operators.triton",
    *(f"trivet.serve.vllm.{name}" for name in ("folder", "loader", "weights")),  # for vLLM's own processes
    "trivet.serve.bench.peers.workers",  # scripts for the environments of others, which nothing here imports
)


# Where the library of a device or of a reference is first imported, inside a function, because it may be absent.
DOORS = (
    "trivet.framework.graph.binding",
    "trivet.framework.engine.published",
    "trivet.framework.model.loading.ranks",
    "trivet.serve.vllm.plugin",
)


def test_the_core_never_imports_torch() -> None:
    core = [(name, path) for name, path in modules() if not name.startswith(EXTRAS)]
    for name, path in core:
        tree = ast.parse(path.read_text())
        nodes = tree.body if name in DOORS else list(ast.walk(tree))
        imported = [getattr(node, "module", None) or alias.name for node in nodes
                    if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]  # fmt: skip
        assert not [module for module in imported if module.startswith(("torch", "triton", *EXTRAS))], name
