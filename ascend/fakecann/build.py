"""Builds the libraries that torch_npu loads: one library under the names of all of CANN's.

What the wheel links against and the sources do not define is generated as a refusal, so nothing can be missing at load
time and nothing answers unasked. Run: python -m ascend.fakecann.build (in an environment that has torch and torch_npu).
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

from ascend.fakecann.thunks import operator_source, refusal_source

_SOURCES = Path(__file__).parent / "src"
BUILD = Path(__file__).parents[2] / "build" / "ascend" / "fakecann"
LIBRARIES = BUILD / "lib"
ENTRY_POINTS = BUILD / "entry_points.json"  # how many there are of each kind

# The sonames that torch_npu 2.13.0 links against or opens by name.
_NAMES = ("ascendcl", "acl_op_compiler", "acl_tdt_channel", "atb", "ge_runner", "graph", "hccl", "nnopbase", "opapi")
_CANN_SYMBOL = re.compile(r"(acl|rt[A-Z]|Msprof|Hccl|_ZN3atb)\w*$")
_OPERATOR_NAME = re.compile(rb"(?<=\0)(aclnn[A-Z]\w*?)(?:Get(?:Max)?WorkspaceSize)?(?=\0)")
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Werror")


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"fakecann: no {name} in this environment; pip install -r ascend/requirements.txt")
    return Path(spec.submodule_search_locations[0])


def _symbols(library: Path, *arguments: str) -> set[str]:
    lines = subprocess.run(["nm", *arguments, library], check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


def _linked() -> set[str]:
    """The CANN symbols that the wheel's own libraries link against."""
    home = _package("torch_npu")
    libraries = (*home.glob("lib/*.so"), *home.glob("_C*.so"))
    names = set[str]().union(*(_symbols(library, "-D", "--undefined-only") for library in libraries))
    return {name for name in names if _CANN_SYMBOL.match(name)}


def _called_operators() -> set[str]:
    """The aclnn operators whose names the wheel carries: it looks their entry points up when they are first called."""
    library = (_package("torch_npu") / "lib" / "libtorch_npu.so").read_bytes()
    return {name.decode() for name in _OPERATOR_NAME.findall(library)}


def _write(path: Path, text: str) -> Path:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


def _compile(source: Path, flags: list[str]) -> Path:
    out = BUILD / f"{source.stem}-torch-{version('torch')}.o"
    newest = max(path.stat().st_mtime for path in (source, *_SOURCES.glob("*.h")))
    if not out.exists() or out.stat().st_mtime < newest:
        subprocess.run(["g++", *flags, "-c", source, "-o", out], check=True)
    return out


def _objects(flags: list[str]) -> Iterator[Path]:
    for source in (*sorted(_SOURCES.glob("*.cpp")), _write(BUILD / "table.cpp", operator_source())):
        yield _compile(source, flags)


def _exported(objects: Iterable[Path]) -> set[str]:
    return set[str]().union(*(_symbols(path, "--defined-only", "--extern-only") for path in objects))


def _runtime(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith(("acl", "Hccl")) and not name.startswith("aclnn")}


def _link(objects: list[Path], torch: Path) -> None:
    library = LIBRARIES / "libfakecann.so"
    libraries = (f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch / 'lib'}", "-Wl,--no-undefined")
    subprocess.run(["g++", "-shared", "-o", library, *objects, *libraries], check=True)
    for name in _NAMES:
        link = LIBRARIES / f"lib{name}.so"
        if not link.is_symlink():
            link.symlink_to(library.name)


def build() -> Path:
    """The folder of the libraries, built anew where a source is newer. Raises CalledProcessError where g++ fails."""
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    torch = _package("torch")
    include = torch / "include"
    flags = [*_FLAGS, f"-I{_SOURCES}", "-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include")]
    objects = list(_objects(flags))
    defined = _exported(objects)
    refused, refused_operators = sorted(_linked() - defined), sorted(_called_operators() - defined)
    refusals = _compile(_write(BUILD / "refusals.cpp", refusal_source(refused, refused_operators)), flags)
    _link([*objects, refusals], torch)
    counts = {
        "runtime_entry_points": len(_runtime(defined)),
        "runtime_entry_points_without_effect": len(_runtime(_exported(BUILD.glob("nothing-*.o")))),
        "runtime_entry_points_refused_by_name": len(refused),
        "operators_refused_by_name": len(refused_operators),
    }
    ENTRY_POINTS.write_text(json.dumps(counts))
    return LIBRARIES


if __name__ == "__main__":
    print(build())
