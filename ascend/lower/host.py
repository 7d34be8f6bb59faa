"""Runs a lowered kernel on this machine: linalg through MLIR and LLVM to a shared object, called once per program.

It shows that the Triton source and its lowering to linalg are right. It does not show the passes that follow for the
NPU, nor the NPU's own arithmetic.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ascend.lower.stages import Lowered, without_mix_mode
from ascend.lower.toolchain import LoweringError, bishengir, run
from trivet.base.dtypes import Array
from trivet.operators.triton.launch import Launch, Size, Stride

# bishengir-opt's own pipeline for the CPU wants a host function that Triton kernels lack, hence its parts in order.
_PASSES = (
    "execution-engine-convert-hfusion-to-upstream",
    "execution-engine-convert-hivm-to-upstream",
    "convert-elementwise-to-linalg",
    "empty-tensor-to-alloc-tensor",
    "one-shot-bufferize=bufferize-function-boundaries=true function-boundary-type-conversion=identity-layout-map"
    " allow-return-allocs-from-loops=true",
    "buffer-deallocation-pipeline",
    "convert-bufferization-to-memref",
    "annotation-lowering",
    "expand-strided-metadata",
    "convert-linalg-to-loops",
    "canonicalize",
    "cse",
    "convert-scf-to-cf",
    "lower-affine",
    "arith-expand",
    "convert-vector-to-llvm",
    "convert-math-to-llvm",
    "convert-math-to-libm",
    "finalize-memref-to-llvm",
    "convert-func-to-llvm",
    "convert-cf-to-llvm",
    "convert-index-to-llvm",
    "convert-arith-to-llvm",
    "reconcile-unrealized-casts",
)
_RUNTIME = Path(__file__).with_name("runtime.c")


def build(lowered: Lowered, cache: Path) -> Path:
    """The shared object of a lowered kernel, from `cache` when it was built before. Raises LoweringError."""
    recipe = "\n".join((*_PASSES, _RUNTIME.read_text(), lowered.linalg))
    target = cache / f"{lowered.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.so"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    source, lowest, module, built = (target.with_suffix(end) for end in (".mlir", ".llvm.mlir", ".ll", ".built"))
    source.write_text(without_mix_mode(lowered.linalg))
    commands: tuple[Sequence[str | Path], ...] = (
        (bishengir("bishengir-opt"), source, *(f"--{name}" for name in _PASSES), "-o", lowest),
        ("mlir-translate-19", "--mlir-to-llvmir", lowest, "-o", module),
        ("clang-19", "-O2", "-fPIC", "-shared", "-Wno-override-module", module, _RUNTIME, "-lm", "-o", built),
    )
    for command in commands:
        done = run(command)
        if done.returncode != 0:
            raise LoweringError(f"{lowered.name}: {Path(command[0]).name} failed: {done.stderr.strip()[-400:]}")
    return built.rename(target)


def execute(launch: Launch, library: Path, operands: Mapping[str, Array], programs: int | None = None) -> None:
    """Run every program of `launch` over arrays in storage format; outputs are written in place.

    The programs run one after another, in order: what needs them to run at once is not shown.
    """
    grid = programs or launch.programs
    function = getattr(ctypes.CDLL(str(library)), launch.kernel.__name__)
    function.restype = None
    # Two memrefs the compiler puts first (locks, workspace), which a vector kernel on the host never reads.
    arguments: list[Any] = [*_memref(None), *_memref(None)]
    for argument in launch.ordered.values():
        if isinstance(argument, str):
            arguments += _memref(operands[argument])
            continue
        if isinstance(argument, Size):
            arguments.append(ctypes.c_int32(operands[argument.operand].shape[argument.axis]))
        elif isinstance(argument, Stride):
            array = operands[argument.operand]
            arguments.append(ctypes.c_int32(array.strides[argument.axis] // array.itemsize))
        else:
            arguments.append(ctypes.c_float(argument))
    for program in range(grid):
        function(*arguments, *(ctypes.c_int32(i) for i in (grid, 1, 1, program, 0, 0)))


def _memref(array: Array | None) -> list[Any]:
    address, size = (0, 0) if array is None else (array.ctypes.data, array.size)
    pointer = ctypes.c_void_p(address)
    return [pointer, pointer, ctypes.c_int64(0), ctypes.c_int64(size), ctypes.c_int64(1)]
