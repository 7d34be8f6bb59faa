"""What each device binds a graph with, and how a contract's samples run on it. One row a device.

PyTorch is imported inside the rows that need it: it is an extra, and the CPU's plan does without.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from trivet._native import Team, targets
from trivet.base.dtypes import Array, DType
from trivet.base.errors import ResourceError
from trivet.driver.devices.device import DeviceName
from trivet.framework.graph.cpu_plan import CpuPlan
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.plan import BoundPlan, Bring, Limits
from trivet.framework.memory.slots import SlotLayout
from trivet.operators.contract import FLOATS

if TYPE_CHECKING:  # verification is imported by who verifies: a start does not
    from trivet.operators.verify import Run


@dataclass(frozen=True)
class Request:
    """Everything a plan is bound to."""

    graph: Graph
    weights: Mapping[str, Array] | Bring  # in the host's memory; a device with its own takes who brings them there too
    limits: Limits
    slots: SlotLayout
    num_slots: int
    cpus: tuple[int, ...]
    cpu_target: str | None
    kept: tuple[str, ...] = ()  # values to be read after a step, beside the outputs


@dataclass(frozen=True)
class Binding:
    """What a device brings, and what it differs in."""

    bind: Callable[[Request], BoundPlan]
    run_samples: Callable[[str | None], Run]  # takes the CPU's kernel target, or None for the best
    describe: Callable[[str | None], str]  # what runs, for people
    awaits_streams: bool = False  # a step waits for a stream where it is needed, and not for all before it begins
    cache_formats: tuple[DType, ...] = FLOATS  # that keys and values may be kept in
    slot_tokens: int | None = None  # where the device's operators fix it; None: as many as a slot's bytes hold
    has_own_memory: bool = False  # weights are brought there; else they lie in the host's
    free_bytes: Callable[[], int | None] = lambda: None  # of a memory of its own
    explain_steps: Callable[[Graph], Iterable[str]] = lambda graph: ()  # how the device runs them, beside the nodes


def _bind_cpu(request: Request) -> BoundPlan:
    assert isinstance(request.weights, Mapping), "the CPU's weights lie in the host's memory"
    return CpuPlan(
        request.graph,
        request.weights,
        limits=request.limits,
        slots=request.slots,
        num_slots=request.num_slots,
        team=Team(list(request.cpus)),
        target=request.cpu_target,
        kept=request.kept,
    )


def _cpu_samples(cpu_target: str | None) -> Run:
    from trivet.operators.native_sample import on_cpu

    return on_cpu(Team([None, None]), cpu_target)


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

    return on_torch("cpu", "torch")


def _bind_npu(request: Request) -> BoundPlan:
    _require_npu()
    from trivet.framework.graph.npu_plan import NpuPlan

    return NpuPlan(
        request.graph,
        request.weights,
        limits=request.limits,
        num_slots=request.num_slots,
        slot_tokens=request.slots.slot_tokens,
    )


def _npu_samples(cpu_target: str | None) -> Run:
    _require_npu()
    from trivet.operators.torch.sample import on_torch

    return on_torch("npu:0", "npu")


def _npu_free_bytes() -> int:
    _require_npu()
    import torch

    free, _ = torch.npu.mem_get_info("npu:0")
    return int(free)


def _triton_samples(cpu_target: str | None) -> Run:
    device = _triton_device()
    from trivet.operators.torch.sample import on_torch

    return on_torch(device, "triton")


@cache
def _triton_device() -> str:
    """The torch device that runs our Triton kernels, which are registered for it once."""
    _require_torch()
    if importlib.util.find_spec("triton") is None:
        raise ResourceError(
            "device triton: Triton is not installed", "pip install triton, or triton-ascend on a host with an NPU"
        )
    import torch

    if torch.cuda.is_available():
        device = "cuda"
    elif _sees_npu():
        device = "npu:0"
    else:
        raise ResourceError(
            "device triton: neither a GPU nor an NPU is seen, and its kernels run on one of them",
            "trivet operators verify --device torch",
        )
    from trivet.operators.triton.run import register, soc_of

    register("triton", soc_of(torch.device(device)))
    return device


def _sees_npu() -> bool:
    try:
        _require_npu()
    except ResourceError:
        return False
    return True


def _npu_steps(graph: Graph) -> Iterable[str]:
    _require_npu()
    import torch

    from trivet.framework.graph.npu_plan import explain_steps

    return explain_steps(graph, torch.npu.get_device_properties("npu:0").name)


def _require_torch() -> None:
    _require("torch", "trivet.operators.torch", "PyTorch", "torch")


def _require_npu() -> None:
    _require("torch_npu", "trivet.operators.npu", "torch_npu", "npu")
    import torch

    if not torch.npu.is_available():
        raise ResourceError("device npu: torch_npu sees no NPU", "trivet doctor --device npu")


def _require(library: str, implementations: str, name: str, device: DeviceName) -> None:
    """Import the device's implementations, which registers them; say so when their library is not there."""
    try:
        importlib.import_module(implementations)
    except ModuleNotFoundError as error:
        if error.name not in (library, "torch"):
            raise
        missing = "PyTorch" if error.name == "torch" else name
        raise ResourceError(f"device {device}: {missing} is not installed", f"pip install 'trivet[{device}]'") from None
    except ImportError as error:
        raise ResourceError(
            f"device {device}: {name} cannot be loaded: {error}", "source CANN's set_env.sh, then: trivet doctor"
        ) from None


BINDINGS: dict[DeviceName, Binding] = {
    "cpu": Binding(
        _bind_cpu,
        run_samples=_cpu_samples,
        describe=lambda target: target or targets()[0],
        cache_formats=(*FLOATS, "int8"),
        awaits_streams=True,
    ),
    "torch": Binding(
        _bind_torch, run_samples=_torch_samples, describe=lambda target: "torch", cache_formats=(*FLOATS, "int8")
    ),
    # 128: the block of a paged cache that npu_fused_infer_attention_score takes for prefill in every layout
    "npu": Binding(
        _bind_npu,
        run_samples=_npu_samples,
        describe=lambda target: "npu",
        slot_tokens=128,
        has_own_memory=True,
        free_bytes=_npu_free_bytes,
        explain_steps=_npu_steps,
    ),
}

# Who can run a contract's samples: every device that binds a graph, and our Triton kernels, which no plan chooses yet.
SAMPLE_RUNS: dict[str, Callable[[str | None], Run]] = {
    **{device: binding.run_samples for device, binding in BINDINGS.items()},
    "triton": _triton_samples,
}
