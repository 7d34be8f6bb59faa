"""What one launch of a Triton kernel is, as data: which operand, size or number goes to which parameter.

The same value is run by a device and by the proofs under `ascend/lower`, so that what is proved is what is launched.
It owns no tensors and never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trivet.operators.contract import Call
from trivet.operators.triton.tiles import Soc


@dataclass(frozen=True)
class Size:
    """How many indices an axis of an operand has, read from the tensor when the kernel is launched."""

    operand: str
    axis: int = 0


@dataclass(frozen=True)
class Stride:
    """Elements from one index of an axis to the next. Rows may be views into something wider; the last axis is not."""

    operand: str
    axis: int = 0


Argument = str | Size | Stride | float  # a str is the operand itself


@dataclass(frozen=True)
class Launch:
    """A kernel, the number of its programs, and what it is given. Programs share the work; any number is right."""

    kernel: Any  # a function under triton.jit
    programs: int
    arguments: Mapping[str, Argument]  # parameter → argument
    constants: Mapping[str, int]  # parameter → compile-time constant: the tile among them

    @property
    def ordered(self) -> dict[str, Argument]:
        """The arguments in the order of the kernel's parameters."""
        return {name: self.arguments[name] for name in self.kernel.arg_names if name in self.arguments}


Bind = Callable[[Call, Mapping[str, int], Soc], Launch]


@dataclass(frozen=True)
class Kernel:
    """An operator's implementation in Triton. `refuse` says why a call is not taken, `launch` binds one that is."""

    operator: str
    refuse: Callable[[Call], str | None]
    launch: Bind


def by_name(*operands: str, strides: tuple[str, ...] = ()) -> dict[str, Argument]:
    """Arguments of parameters that are called as their operands, and `<operand>_stride` for the rows of `strides`."""
    arguments: dict[str, Argument] = dict(zip(operands, operands, strict=True))
    return arguments | {f"{operand}_stride": Stride(operand) for operand in strides}


def power_of_two(size: int) -> int:
    """The least power of two that holds `size`: Triton's ranges are powers of two, what is beyond is masked."""
    return 1 << (size - 1).bit_length()
