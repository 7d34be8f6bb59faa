"""A launch's kernel, lowered by Huawei's own compiler: Triton IR, then linalg, then memory-planned HIVM.

The last step, HIVM to machine code, belongs to `hivmc`, which is not public; what a chip would do is not shown here.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from ascend.lower.toolchain import LoweringError, bishengir, run
from trivet.base.dtypes import DType
from trivet.operators.triton.launch import Argument, Launch, Size, Stride

_POINTERS: dict[DType, str] = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "int32": "*i32"}
_OVERFLOW = re.compile(r"(\w+) overflow, requires (\d+) bits while (\d+) bits available")
_POINTER_CAST = re.compile(r"hivm\.hir\.pointer_cast\(([^)]*)\).*?memref<((?:\d+x)+\w+), #hivm\.address_space<(\w+)>>")
_MEMORIES = {"ub": "UB", "cbuf": "L1", "cc": "L0C", "ca": "L0A", "cb": "L0B"}


@dataclass(frozen=True)
class Lowered:
    """A kernel in the two forms that everything else starts from."""

    name: str  # of the kernel's function
    ttir: str
    linalg: str


def lower(launch: Launch, dtypes: Mapping[str, DType], soc: str) -> Lowered:
    """The kernel of `launch` for operands of `dtypes`. Raises LoweringError when Triton or its adapter refuses it.

    Sizes and strides are 32-bit arguments, as a launcher passes them while they are small: whatever needs more must
    widen them itself, and `offsets.py` looks whether it did.
    """
    backend = make_backend(GPUTarget("npu", soc, 0))
    source = ASTSource(
        fn=launch.kernel,
        signature=signature(launch, dtypes),
        constants=dict(launch.constants),
    )
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Callable[[Any, dict[str, Any]], Any]] = {}
    backend.add_stages(stages, options)
    metadata = {"target": backend.target, **options.__dict__, "hash": launch.kernel.__name__}
    try:
        module = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
        ttir = stages["ttir"](module, metadata)
        linalg = stages["ttadapter"](ttir, metadata)
    except (triton.CompilationError, subprocess.CalledProcessError) as refused:
        reason = getattr(refused, "stderr", None) or str(refused)
        raise LoweringError(f"{describe(launch, dtypes)}: {_last_error(str(reason))}") from refused
    return Lowered(launch.kernel.__name__, str(ttir), linalg)


@dataclass(frozen=True)
class Planned:
    """A kernel whose local memory is planned for one SoC. `module` is the HIVM text that hivmc would be given."""

    module: str
    used_bytes: Mapping[str, int]  # memory → the highest byte in use


def plan_memory(lowered: Lowered, soc: str, what: str) -> Planned:
    """Compile for `soc` up to and including memory planning and synchronisation.

    Raises LoweringError naming `what` when a local memory is too small (need and have, in bytes), or the compiler
    refuses the kernel for another reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = compile_for(lowered, soc, Path(folder))
        kept = Path(folder) / "module.hivm.opt.mlir"
        if done.returncode == 0 and kept.exists():
            module = kept.read_text()
            return Planned(module, _used(module))
    report = done.stdout + done.stderr
    overflow = _OVERFLOW.findall(report)
    if overflow:
        memory, need, have = overflow[-1]
        raise LoweringError(
            f"{what}: {_MEMORIES.get(memory, memory)} of {soc} overflows, the tile needs {int(need) // 8} bytes of"
            f" {int(have) // 8}",
            "choose a smaller tile in trivet/operators/triton/tiles.py",
        )
    raise LoweringError(f"{what}: {soc} is refused: {_last_error(report)}")


def describe(launch: Launch, dtypes: Mapping[str, DType]) -> str:
    """Kernel, dtype and tile in one line, as every message names them."""
    operands = [argument for argument in launch.ordered.values() if isinstance(argument, str)]
    kinds = dict.fromkeys(dtypes[operand] for operand in operands)
    tile = ", ".join(f"{name}={value}" for name, value in launch.constants.items())
    return f"{launch.kernel.__name__} ({'/'.join(kinds)}; {tile})"


def signature(launch: Launch, dtypes: Mapping[str, DType]) -> dict[str, str]:
    """Triton's type of every parameter that is not a constant."""
    return {name: _type(argument, dtypes) for name, argument in launch.ordered.items()}


def without_mix_mode(linalg: str) -> str:
    """The linalg text as the compiler takes it: `mix_mode` is a note from the adapter to the launcher."""
    return re.sub(r', mix_mode\s*=\s*"[^"]*"', "", linalg)


def _type(argument: Argument, dtypes: Mapping[str, DType]) -> str:
    if isinstance(argument, str):
        return _POINTERS[dtypes[argument]]
    return "i32" if isinstance(argument, Size | Stride) else "fp32"


def _used(module: str) -> dict[str, int]:
    """Highest byte per local memory, from the pointer casts that memory planning leaves behind."""
    used: dict[str, int] = {}
    for offsets, shape, space in _POINTER_CAST.findall(module):
        *extents, element = shape.split("x")
        size = prod(int(extent) for extent in extents) * int(element.lstrip("bfiu")) // 8
        for offset in re.findall(r"%c(\d+)_i64", offsets):
            used[space] = max(used.get(space, 0), int(offset) + size)
    return {_MEMORIES.get(space, space): end for space, end in used.items()}


def _last_error(report: str) -> str:
    errors = [line for line in report.splitlines() if "error" in line.lower()]
    return (errors or report.splitlines() or ["no message"])[-1].strip()


def compile_for(lowered: Lowered, soc: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Huawei's compiler over a kernel, in `folder`, with the options that everything here compiles by and `more`."""
    source = folder / "kernel.mlir"
    source.write_text(without_mix_mode(lowered.linalg))
    command: tuple[str | Path, ...] = (
        bishengir("bishengir-compile"), source, f"--target={soc}",
        "--enable-auto-multi-buffer=true", "--enable-auto-bind-sub-block=true",
        "--enable-hfusion-compile=true", "--enable-hivm-compile=true", "--enable-triton-kernel-compile=true",
        *more, "-o", folder / "kernel",
    )  # fmt: skip
    return run(command, {"HIVMC_KEEPS": str(folder)})
