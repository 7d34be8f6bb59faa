"""Do the lowered kernels, run on this machine, agree with their contracts? Operands lie as parts of wider ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ascend.lower.agreement import POISON, Agreement, compare, operand_dtypes, operands, outputs
from ascend.lower.host import build, execute
from ascend.lower.stages import describe, lower
from trivet.base.dtypes import Array
from trivet.operators.contract import Operator, Sample
from trivet.operators.triton.launch import Launch

_FENCE = 0xA5  # between rows of an output: unlike what a kernel could have copied from between rows of an input
_GAP = 16  # elements between rows that belong to nobody


def check(launch: Launch, operator: Operator, sample: Sample, soc: str, cache: Path) -> Agreement:
    """Lower, build and run `launch` on one sample and compare every output with the reference.

    Raises AssertionError when it wrote outside its operands, LoweringError when it could not be compiled.
    """
    what = f"{describe(launch, operand_dtypes(operator, sample.call))} on {dict(sample.sizes)}"
    return compare(what, operator, sample, _left(launch, operator, sample, soc, cache))


def run(launch: Launch, operator: Operator, sample: Sample, soc: str, cache: Path) -> dict[str, Array]:
    """Every output of the operator, in logical shape and storage format, as the kernel left it. Raises as `check`."""
    return outputs(operator, sample, _left(launch, operator, sample, soc, cache))


def _left(launch: Launch, operator: Operator, sample: Sample, soc: str, cache: Path) -> dict[str, Array]:
    """The operands after the kernel ran over them."""
    made = {argument.name for argument in operator.outputs}
    left = {
        name: _apart(array, _FENCE if name in made else POISON) for name, array in operands(operator, sample).items()
    }
    execute(launch, build(lower(launch, operand_dtypes(operator, sample.call), soc), cache), left)
    for name in made & left.keys():
        assert _is_intact(left[name]), f"{launch.kernel.__name__} wrote outside {name}"
    return left


def _apart(array: Array, between: int) -> Array:
    """A copy; with two axes its rows are parts of wider ones, as those of a split are, with bytes `between` them."""
    if array.ndim != 2:
        return array.copy()
    num_rows, width = array.shape
    whole = np.full((num_rows, (width + _GAP) * array.itemsize), between, np.uint8).view(array.dtype)
    whole[:, :width] = array
    return whole[:, :width]


def _is_intact(array: Array) -> bool:
    """Whether the fences between an output's rows stand."""
    if array.ndim != 2:
        return True
    assert isinstance(array.base, np.ndarray)
    gaps = array.base.view(np.uint8).reshape(array.shape[0], -1)[:, array.shape[1] * array.itemsize :]
    return bool((gaps == _FENCE).all())
