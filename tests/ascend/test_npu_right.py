"""What the implementations compute, through the unmodified torch_npu wheel over the fake CANN, against the contracts.

The fake computes each operator as its page says, on the CPU: this proves that ours are called as their pages want, with
the right numbers in the right places, and nothing about the device's own arithmetic.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

if "FAKECANN" not in os.environ:
    pytest.skip("runs over the fake CANN: python -m ascend.fakecann.run pytest …", allow_module_level=True)

import torch

from ascend.fakecann import counters
from ascend.lower.agreement import widened
from trivet.operators import npu
from trivet.operators.contract import OPERATORS, Call, Implementation, Sample, TensorSpec, choose
from trivet.operators.samples import normal, ragged, spec
from trivet.operators.torch.sample import lengths_of, on_torch, to_torch
from trivet.operators.verify import reference_outputs, verify

# num_heads, num_kv_heads, head_dim, slot_tokens, variant, (positions in the cache, new tokens) of each sequence.
# A decode, a prefill, a prefill onto a prefix, two of one length, one that fills its slot, one that begins the next.
BATCHES = [
    (8, 2, 128, 16, "ragged", [(0, 5), (17, 1), (15, 2), (100, 1)]),
    (4, 4, 192, 128, "ragged", [(130, 1), (0, 200), (7, 19), (255, 1), (256, 1)]),
    (14, 2, 64, 128, "batched", [(100, 1), (7, 1), (0, 30), (0, 30), (140, 3)]),
    (4, 1, 80, 256, "batched", [(300, 1)]),
    (6, 3, 16, 128, "batched", [(126, 2), (127, 1), (128, 1), (0, 129)]),
]


@pytest.mark.parametrize(("num_heads", "kv_heads", "head_dim", "slot_tokens", "variant", "lengths"), BATCHES)
def test_attention_of_either_layout_is_right_over_ragged_batches(
    num_heads: int, kv_heads: int, head_dim: int, slot_tokens: int, variant: str, lengths: list[tuple[int, int]]
) -> None:
    rng = np.random.default_rng(head_dim)
    batch = ragged(rng, slot_tokens, lengths)
    q = normal(rng, (len(batch.positions), num_heads * head_dim), "bfloat16", 2.0)
    stored = normal(rng, (batch.num_slots, slot_tokens, 2, kv_heads, head_dim), "bfloat16")
    cache = TensorSpec(("num_slots", "slot_tokens", 2, kv_heads, head_dim), "bfloat16", "blocks")
    queries = spec(("tokens", num_heads * head_dim), "bfloat16")
    integers = (spec(("tokens",), "int32"), spec(("starts",), "int32"), spec(("sequences", "max_slots"), "int32"))
    call = Call("attention", (queries, cache, *integers), (queries,), {"scale": head_dim**-0.5})
    sizes = {"slot_tokens": slot_tokens, "num_slots": batch.num_slots}
    chosen = choose(call, "npu")
    assert isinstance(chosen, Implementation)
    assert variant == chosen.variant
    inputs = [
        to_torch(q, "bfloat16"),
        to_torch(np.moveaxis(stored, 2, 0), "bfloat16"),
        *(torch.from_numpy(array) for array in (batch.positions, batch.starts, batch.slots)),
    ]
    run = chosen.lower(call, sizes)
    sample = Sample(call, (q, stored, batch.positions, batch.starts, batch.slots), sizes)
    (y,) = run([tensor.to("npu") for tensor in inputs], lengths_of(OPERATORS["attention"], sample, "npu"))
    (expected,) = reference_outputs(OPERATORS["attention"], widened(sample))

    # The result is rounded to bfloat16 (2⁻⁸ of it), and so are the weights of the sum before it. Queries are not: they
    # are multiplied as they are, and scores are scaled.
    np.testing.assert_allclose(y.float().cpu().numpy(), expected, rtol=2**-7, atol=2**-7)


def test_the_gate_of_a_merged_product_is_the_devices_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    real, given = npu.pointwise.torch_npu.npu_swiglu, []
    monkeypatch.setattr(
        npu.pointwise.torch_npu,
        "npu_swiglu",
        lambda input, dim: given.append(input.shape) or real(input=input, dim=dim),
    )
    half = spec(("tokens", 48), "bfloat16")
    call = Call("silu_mul", (half, half), (half,))
    chosen = choose(call, "npu")
    assert isinstance(chosen, Implementation)
    product = torch.randn(5, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    gate, up = product.split(48, dim=1)
    (y,) = chosen.lower(call, {})(list(product.to("npu").split(48, dim=1)), None)

    assert [(5, 96)] == given
    torch.testing.assert_close(y.cpu(), torch.nn.functional.silu(gate.float()).mul(up.float()).bfloat16())


def without(name: str) -> Callable[[Any], Any]:
    """The operator called with one argument left to its default."""
    return lambda real: lambda **given: real(**{key: value for key, value in given.items() if key != name})


def instead(**changes: object) -> Callable[[Any], Any]:
    """The operator called with other arguments."""
    return lambda real: lambda **given: real(**given | changes)


def next_first(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    first, rest = tensor.split([1, tensor.shape[dim] - 1], dim=dim)
    return torch.cat([rest, first], dim=dim)


def rolled(name: str) -> Callable[[Any], Any]:
    """The operator called with one argument's elements moved on by one: experts, or choices."""

    def plant(real: Any) -> Any:
        def call(**given: Any) -> Any:
            value = given[name]
            moved = [next_first(each, 0) for each in value] if isinstance(value, list) else next_first(value, 1)
            return real(**given | {name: moved})

        return call

    return plant


PLANTED = {
    "softmax for sigmoid": ("router_topk", "npu_moe_gating_top_k", instead(norm_type=0)),
    "rows of the next expert": ("grouped_linear", "npu_grouped_matmul", rolled("weight")),
    "weights of the other choice": ("moe_unpermute", "npu_moe_token_unpermute", rolled("probs")),
    "the default scale of 1.0": ("attention", "npu_fused_infer_attention_score", without("scale")),
    "no mask": ("attention", "npu_fused_infer_attention_score", instead(atten_mask=None, sparse_mode=0)),
    "dims paired with their neighbours": ("rope", "npu_rotary_mul", instead(rotary_mode="interleave")),
    "pairs paired with their neighbours": ("rope_kv_store", "npu_mrope", instead(rotary_mode="interleave")),
    "another epsilon": ("rms_norm", "npu_rms_norm", instead(epsilon=0.5)),
    "another epsilon after an addition": ("add_rms_norm", "npu_add_rms_norm", instead(epsilon=0.5)),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found_by_verify(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, name, plant = PLANTED[mistake]
    package = npu.attention.torch_npu
    monkeypatch.setattr(package, name, plant(getattr(package, name)))

    assert not verify(OPERATORS[operator], on_torch("npu", "npu"), "bfloat16").passed


def in_blocks_of_the_other_order(matrix: torch.Tensor) -> torch.Tensor:
    """The layout of the cube unit's other operand: each block of 16 × 16 lies columns first."""
    rows, columns = (-(-size // 16) * 16 for size in matrix.shape)
    padded = torch.nn.functional.pad(matrix.cpu(), (0, columns - matrix.shape[1], 0, rows - matrix.shape[0]))
    turned = padded.view(rows // 16, 16, columns // 16, 16).transpose(1, 3).reshape(rows, columns)
    kept = turned[: matrix.shape[0], : matrix.shape[1]]
    return kept.clone(memory_format=torch.contiguous_format).to("npu")


def test_a_planted_mistake_in_the_fractal_layout_is_found_by_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    real = npu.linear.to_fractal
    monkeypatch.setattr(npu.linear, "to_fractal", lambda matrix: real(in_blocks_of_the_other_order(matrix)))

    assert not verify(OPERATORS["linear"], on_torch("npu", "npu"), "bfloat16").passed


def test_verify_multiplies_by_matrices_in_the_fractal_layout() -> None:
    counters.reset()

    assert verify(OPERATORS["linear"], on_torch("npu", "npu"), "bfloat16").passed
    assert counters.read().launches["aclnnMatmulWeightNz"] > 0
