"""Launches over torch tensors: the Triton kernels as implementations of a torch device.

The only module of this package that imports torch, so that the kernels can be compiled and proved without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from trivet.operators.contract import Call, Implementation, Operator, TensorSpec, implement, operator_named
from trivet.operators.torch.call import DTYPES, Lower, Run, refuse_layouts
from trivet.operators.torch.lengths import StepLengths
from trivet.operators.triton.families import KERNELS
from trivet.operators.triton.launch import Argument, Kernel, Launch, Size, Stride
from trivet.operators.triton.routine import ROUTINES, Routine
from trivet.operators.triton.tiles import Soc, soc_named


def register(device: str, soc: Soc) -> None:
    """Let every Triton kernel implement its operator on `device`, after what is registered there already."""
    for kernel in KERNELS:
        implement(Implementation(kernel.operator, device, "triton", _refuse(kernel), _lower(kernel, soc)))
    for routine in ROUTINES:
        implement(Implementation(routine.operator, device, "triton", _refuse(routine), _lower_routine(routine, soc)))


def soc_of(device: torch.device) -> Soc:
    """The chip behind a torch device. Raises ConfigError for one that is neither a GPU nor an NPU with tiles.

    A GPU's kernels are as many programs as fill its multiprocessors: one of matrix products each, four of vectors.
    """
    if device.type == "cuda":
        count = torch.cuda.get_device_properties(device).multi_processor_count
        return Soc(torch.cuda.get_device_name(device), "GPU", count, 4 * count)
    return soc_named(torch.get_device_module(device).get_device_name(device) if device.type == "npu" else device.type)


def launch(bound: Launch, operands: Mapping[str, torch.Tensor]) -> None:
    """Start a kernel on the device of its operands; does not wait for it."""
    arguments = {name: _value(argument, operands) for name, argument in bound.arguments.items()}
    bound.kernel[(bound.programs,)](**arguments, **bound.constants)


def _value(argument: Argument, operands: Mapping[str, torch.Tensor]) -> torch.Tensor | int | float:
    if isinstance(argument, str):
        return operands[argument]
    if isinstance(argument, Size):
        return operands[argument.operand].shape[argument.axis]
    if isinstance(argument, Stride):
        return operands[argument.operand].stride(argument.axis)
    return argument


def _refuse(kernel: Kernel | Routine) -> Callable[[Call], str | None]:
    return lambda call: refuse_layouts(call) or _refuse_dtypes(call) or kernel.refuse(call)


def _refuse_dtypes(call: Call) -> str | None:
    for spec in (*call.inputs, *call.outputs):
        if spec is not None and spec.dtype not in DTYPES:
            return f"an operand is {spec.dtype}, wanted one of {', '.join(DTYPES)}"
    return None


def _lower(kernel: Kernel, soc: Soc) -> Lower:
    contract = operator_named(kernel.operator)

    def lower(call: Call, sizes: Mapping[str, int]) -> Run:
        bound = kernel.launch(call, sizes, soc)

        def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
            operands, outputs = _operands(contract, call, inputs)
            launch(bound, operands)
            return outputs

        return run

    return lower


def _lower_routine(routine: Routine, soc: Soc) -> Lower:
    contract = operator_named(routine.operator)

    def lower(call: Call, sizes: Mapping[str, int]) -> Run:
        launches = routine.launches(call, soc)

        def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
            operands, outputs = _operands(contract, call, inputs)
            first = outputs[0]
            for name in routine.pairs:
                operands[name] = operands[name].flatten(0, 1)
            for name, (shape, dtype) in routine.scratch(call, len(first)).items():
                operands[name] = torch.empty(shape, dtype=DTYPES[dtype], device=first.device)
            for each in launches:
                launch(each, operands)
            return outputs

        return run

    return lower


def _operands(
    contract: Operator, call: Call, inputs: Sequence[torch.Tensor | None]
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Every argument by name, with room for what is made; the outputs in the contract's order."""
    names = [argument.name for argument in contract.inputs]
    operands = {name: tensor for name, tensor in zip(names, inputs, strict=True) if tensor is not None}
    outputs = []
    for argument, spec in zip(contract.outputs, call.outputs, strict=False):
        updated = contract.updates.get(argument.name)
        operands[argument.name] = operands[updated] if updated is not None else _empty(spec, call, inputs)
        outputs.append(operands[argument.name])
    return operands, outputs


def _empty(spec: TensorSpec, call: Call, inputs: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Room for an output; axes known by name only are as long as they are in the inputs."""
    sizes: dict[int | str, int] = {}
    device = None
    for given, tensor in zip(call.inputs, inputs, strict=True):
        if given is not None and tensor is not None and given.layout == "rows":
            sizes |= zip(given.axes, tensor.shape, strict=True)
            device = tensor.device
    assert spec.dtype is not None
    return torch.empty([sizes.get(axis, axis) for axis in spec.axes], dtype=DTYPES[spec.dtype], device=device)
