"""What each device binds a graph with, and how a contract's samples run on it. One row a device.

PyTorch is imported inside the rows that need it: it is an extra, and the CPU's plan does without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trivet._native import Team, targets
from trivet.base.dtypes import Array
from trivet.base.errors import ResourceError
from trivet.framework.graph.cpu_plan import CpuPlan
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.passes import DeviceName
from trivet.framework.graph.plan import BoundPlan, Limits
from trivet.framework.memory.slots import SlotLayout
from trivet.operators.native_sample import on_cpu
from trivet.operators.verify import Run


@dataclass(frozen=True)
class Request:
    """Everything a plan is bound to."""

    graph: Graph
    weights: Mapping[str, Array]
    limits: Limits
    slots: SlotLayout
    num_slots: int
    cpus: tuple[int, ...]
    cpu_target: str | None


@dataclass(frozen=True)
class Binding:
    bind: Callable[[Request], BoundPlan]
    run_samples: Callable[[str | None], Run]  # takes the CPU's kernel target, or None for the best
    describe: Callable[[str | None], str]  # what runs, for people


def _bind_cpu(request: Request) -> BoundPlan:
    return CpuPlan(
        request.graph,
        request.weights,
        limits=request.limits,
        slots=request.slots,
        num_slots=request.num_slots,
        team=Team(list(request.cpus)),
        target=request.cpu_target,
    )


def _bind_torch(request: Request) -> BoundPlan:
    _require_torch()
    from trivet.framework.graph.torch_plan import TorchPlan

    return TorchPlan(
        request.graph,
        request.weights,
        limits=request.limits,
        num_slots=request.num_slots,
        slot_tokens=request.slots.slot_tokens,
    )


def _torch_samples(cpu_target: str | None) -> Run:
    _require_torch()
    from trivet.operators.torch.sample import on_torch

    return on_torch()


def _require_torch() -> None:
    try:
        import trivet.operators.torch  # noqa: F401  registers the implementations
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ResourceError("device torch: PyTorch is not installed", "pip install 'trivet[torch]'") from None


BINDINGS: dict[DeviceName, Binding] = {
    "cpu": Binding(
        _bind_cpu,
        run_samples=lambda target: on_cpu(Team([None, None]), target),
        describe=lambda target: target or targets()[0],
    ),
    "torch": Binding(_bind_torch, run_samples=_torch_samples, describe=lambda target: "torch"),
}
