"""A GPU, or an NPU with triton-ascend: our Triton kernels against their contracts, and their speed beside a copy's.

Run them on the host that has it, in an environment with PyTorch and Triton: python -m pytest tests/hardware
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trivet.base.dtypes import DType
from trivet.base.errors import ResourceError
from trivet.framework.graph.binding import SAMPLE_RUNS
from trivet.operators import OPERATORS
from trivet.operators.contract import IMPLEMENTATIONS, Call, Implementation, TensorSpec, choose
from trivet.operators.verify import Run, verify

if TYPE_CHECKING:  # absent where these tests skip
    import torch

# Rows of 8192 in bfloat16: 16 MiB and more of each operand, far past what caches hold together.
_TOKENS, _WIDTH = 4096, 8192
_ROWS = TensorSpec(("tokens", _WIDTH), "bfloat16")
_WEIGHT = TensorSpec((_WIDTH,), "float32")
_STREAMS = {
    "add": Call("add", (_ROWS, _ROWS), (_ROWS,)),
    "silu_mul": Call("silu_mul", (_ROWS, _ROWS), (_ROWS,)),
    "rms_norm": Call("rms_norm", (_ROWS, _WEIGHT), (_ROWS,), {"epsilon": 1e-6}),
    "add_rms_norm": Call("add_rms_norm", (_ROWS, _ROWS, _WEIGHT), (_ROWS, _ROWS), {"epsilon": 1e-6}),
}


@pytest.fixture(scope="module")
def run() -> Run:
    try:
        return SAMPLE_RUNS["triton"](None)
    except ResourceError as error:
        pytest.skip(f"needs a GPU or an NPU with PyTorch and Triton: {error.message}")


@pytest.mark.parametrize("activations", ["float32", "bfloat16"])
def test_every_kernel_agrees_with_its_contract(activations: DType, run: Run) -> None:
    names = [name for name, device in IMPLEMENTATIONS if device == "triton"]
    failures = [verify(OPERATORS[name], run, activations).failure for name in names]

    assert len(names) > 10
    assert [None] * len(names) == failures


@pytest.mark.parametrize("name", _STREAMS)
def test_a_kernel_that_only_moves_rows_keeps_to_half_the_speed_of_a_copy(
    name: str, run: Run, record_property: Any
) -> None:
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "npu:0")
    call = _STREAMS[name]
    chosen = choose(call, "triton")
    assert isinstance(chosen, Implementation)
    lowered = chosen.lower(call, {})
    inputs = [_random(spec, device) for spec in call.inputs if spec is not None]
    source = inputs[0]
    moved = OPERATORS[name].bytes(call, {"tokens": _TOKENS})
    copied = 2 * source.nbytes
    speed = moved / _seconds(lambda: lowered(inputs, None), device)
    limit = copied / _seconds(source.clone, device)
    record_property("gigabytes_per_second", speed / 1e9)
    record_property("of_a_copy", speed / limit)

    assert speed > 0.5 * limit, f"{speed / 1e9:.0f} GB/s, a copy {limit / 1e9:.0f}"


def _random(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    from trivet.operators.torch.sample import to_torch

    shape = [_TOKENS if axis == "tokens" else axis for axis in spec.axes]
    values = to_torch(np.random.default_rng(0).standard_normal(shape, np.float32), "float32")
    return values.bfloat16().to(device) if spec.dtype == "bfloat16" else values.to(device)


def _seconds(run: Any, device: torch.device) -> float:
    """The shortest of ten runs, by the device's own events."""
    import torch

    there, shortest = torch.get_device_module(device), float("inf")
    for _ in range(12):  # the first two compile and warm up
        start, end = there.Event(enable_timing=True), there.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        there.synchronize()
        shortest = min(shortest, start.elapsed_time(end) / 1e3)
    return shortest
