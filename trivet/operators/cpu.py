"""The CPU's side of the contracts: an accepted call becomes one instruction of a native program.

The native kernels keep activations in float32 and weights and cache in float32 or bfloat16. They neither check nor
fail: whatever a kernel cannot do is refused here, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from trivet._native import Program
from trivet.operators.contract import Call, Implementation, implement, operator_named

Extent = Literal["tokens", "rows"]


@dataclass(frozen=True)
class KernelCall:
    """An instruction before it has addresses. `operands` are the contract's argument names in the kernel's order."""

    kernel: str
    extent: Extent  # the axis whose size is the number of rows the kernel works on
    operands: tuple[str, ...]
    integers: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()


def implement_kernel(
    operator: str,
    operands: tuple[str, ...],
    integers: Callable[[Call, Mapping[str, int]], tuple[int, ...]],
    numbers: Callable[[Call], tuple[float, ...]] = lambda call: (),
    refuse: Callable[[Call], str | None] = lambda call: None,
) -> Implementation:
    """Register the native kernel of the same name as the operator's implementation on the CPU."""
    contract = operator_named(operator)
    activations = [a.name not in ("weight", "table", "cache") for a in contract.inputs]

    def refuse_call(call: Call) -> str | None:
        for argument, spec, is_activation in zip(contract.inputs, call.inputs, activations, strict=True):
            if operator != "cast" and is_activation and spec is not None and spec.dtype not in ("float32", "int32"):
                return f"{argument.name} is {spec.dtype}, the kernel computes on float32"
        return refuse(call)

    def lower(call: Call, sizes: Mapping[str, int]) -> KernelCall:
        return KernelCall(operator, _extent(call), operands, integers(call, sizes), numbers(call))

    return implement(Implementation(operator, "cpu", "native", refuse_call, lower))


def _extent(call: Call) -> Extent:
    first_axes = {spec.axes[0] for spec in (call.outputs[0], call.inputs[0]) if spec is not None}
    assert first_axes & {"tokens", "rows"}, f"{call.operator}: no argument runs over tokens or rows"
    return "rows" if call.outputs[0].axes[0] == "rows" else "tokens"


Operand = tuple[int, int, str]  # address, bytes from one row to the next, dtype

_ABSENT: Operand = (0, 0, "float32")


def append(program: Program, call: KernelCall, operands: Mapping[str, Operand], stream: int | None = None) -> None:
    """Bind `call` to addresses and put it at the end of `program`. Optional arguments may be left out. `stream`: which
    of those that come while the program runs it reads, and waits for."""
    bound = [operands.get(name, _ABSENT) for name in call.operands]
    program.add(call.kernel, call.extent, bound, list(call.integers), list(call.numbers), stream)
