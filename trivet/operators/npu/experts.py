"""Routing over npu_moe_gating_top_k, npu_moe_init_routing_v2, npu_grouped_matmul and npu_moe_token_unpermute, and the
norm before it over npu_rms_norm.

The router's operator compares scores, the contract logits: of two that float32 makes equal (both zero beside one that
is 100 larger) it takes the lower expert, though its logit may be the lower as well. npu_add_rms_norm_cast would make
both rows of the norm in one go, but its page lists no chip before the 950.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch_npu

from trivet.operators.contract import Call
from trivet.operators.npu.call import implement_on_npu
from trivet.operators.npu.refuse import refuse_formats, width_of
from trivet.operators.top import EPSILON
from trivet.operators.torch.call import DTYPES, Run, given
from trivet.operators.torch.lengths import StepLengths

_MAX_ROUTED = 2048  # experts that npu_moe_gating_top_k ranks
_MIN_GROUP = 3  # experts of a group, of which there is one here
_MAX_PERMUTED = 10240  # experts that npu_moe_init_routing_v2 counts up to
_MAX_GROUPS = 1024  # of one npu_grouped_matmul
_INNER_LIMIT = 65536  # its last axes must be below
_MAX_CHOSEN = 512  # rows that npu_moe_token_unpermute adds for a token


def _refuse_router(call: Call) -> str | None:
    num_experts = width_of(call, 0)
    if call.attributes["score"] == "sigmoid" and not call.integer("is_renormalised"):
        return "sigmoid scores are not renormalised, npu_moe_gating_top_k always divides them by their sum"
    if not _MIN_GROUP <= num_experts <= _MAX_ROUTED:
        return f"{num_experts} experts, npu_moe_gating_top_k takes {_MIN_GROUP} to {_MAX_ROUTED}"
    return None


def _router_topk(call: Call, sizes: Mapping[str, int]) -> Run:
    chosen, is_sigmoid = call.integer("chosen"), call.attributes["score"] == "sigmoid"
    is_left_to_us = not is_sigmoid and bool(call.integer("is_renormalised"))  # the operator's own `renorm` is 0 only

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        (logits,) = given(inputs, 0)
        weights, experts, _ = torch_npu.npu_moe_gating_top_k(
            x=logits,
            k=chosen,
            bias=None,
            k_group=1,
            group_count=1,
            group_select_mode=0,
            renorm=0,
            norm_type=int(is_sigmoid),
            out_flag=False,
            routed_scaling_factor=1.0,
            eps=EPSILON,
        )
        return [weights / weights.sum(dim=1, keepdim=True) if is_left_to_us else weights, experts]

    return run


def _refuse_permute(call: Call) -> str | None:
    num_experts = call.integer("num_experts")
    if num_experts > _MAX_PERMUTED:
        return f"{num_experts} experts, npu_moe_init_routing_v2 takes up to {_MAX_PERMUTED}"
    return refuse_formats(call, ("x", "y"))


def _permute(call: Call, sizes: Mapping[str, int]) -> Run:
    num_experts = call.integer("num_experts")

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        x, experts = given(inputs, 0, 1)
        rows, places, ends, _ = torch_npu.npu_moe_init_routing_v2(
            x=x,
            expert_idx=experts,
            scale=None,
            offset=None,
            active_num=experts.numel(),
            expert_capacity=-1,
            expert_num=num_experts,
            drop_pad_mode=0,  # no row is dropped
            expert_tokens_num_type=0,  # sums up to each expert
            expert_tokens_num_flag=True,
            quant_mode=-1,
            active_expert_range=[0, num_experts],
            row_idx_type=0,  # where each pair went, not where each row came from
            x_dtype=None,
        )
        return [rows.unflatten(0, experts.shape), places.view(experts.shape), ends.int()]

    return run


def _refuse_grouped(call: Call) -> str | None:
    weight = call.inputs[1]
    assert weight is not None
    num_experts, out, width = weight.axes
    assert isinstance(num_experts, int) and isinstance(out, int) and isinstance(width, int)
    if num_experts > _MAX_GROUPS:
        return f"{num_experts} experts, npu_grouped_matmul takes up to {_MAX_GROUPS} groups"
    if max(out, width) >= _INNER_LIMIT:
        return f"weights are {out} by {width}, npu_grouped_matmul takes axes below {_INNER_LIMIT}"
    return refuse_formats(call, ("x", "weight", "y"))


def _grouped_linear(call: Call, sizes: Mapping[str, int]) -> Run:
    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        x, weight, ends = given(inputs, 0, 1, 2)
        (y,) = torch_npu.npu_grouped_matmul(
            x=[x.flatten(0, 1)],
            weight=[weight.transpose(1, 2)],  # a view: the operator takes transposed weights
            bias=None,
            scale=None,
            offset=None,
            antiquant_scale=None,
            antiquant_offset=None,
            per_token_scale=None,
            group_list=ends.long(),
            activation_input=None,
            activation_quant_scale=None,
            activation_quant_offset=None,
            split_item=2,  # one result
            group_type=0,  # groups of rows
            group_list_type=0,  # sums up to each
            act_type=0,
            tuning_config=None,
            output_dtype=None,
        )
        return [y.unflatten(0, x.shape[:2])]

    return run


def _refuse_unpermute(call: Call) -> str | None:
    chosen = width_of(call, 1)
    if chosen > _MAX_CHOSEN:
        return f"{chosen} experts are chosen, npu_moe_token_unpermute takes up to {_MAX_CHOSEN}"
    return refuse_formats(call, ("x", "y"))


def _unpermute(call: Call, sizes: Mapping[str, int]) -> Run:
    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        x, places, weights = given(inputs, 0, 1, 2)
        y = torch_npu.npu_moe_token_unpermute(
            permuted_tokens=x.flatten(0, 1),
            sorted_indices=places.flatten(),
            probs=weights,
            padded_mode=False,
            restore_shape=None,
        )
        return [y]

    return run


def _refuse_norm(call: Call) -> str | None:
    return refuse_formats(call, ("a", "b", "sum", "y"))


def _add_rms_norm_cast(call: Call, sizes: Mapping[str, int]) -> Run:
    epsilon = call.number("epsilon")
    assert call.outputs[1].dtype is not None
    dtype = DTYPES[call.outputs[1].dtype]

    def run(inputs: Sequence[torch.Tensor | None], lengths: StepLengths) -> list[torch.Tensor]:
        a, b, weight = given(inputs, 0, 1, 2)
        total = a + b
        wide, _ = torch_npu.npu_rms_norm(input=total.float(), gamma=weight, epsilon=epsilon)
        return [total, wide.to(dtype), wide]

    return run


implement_on_npu("router_topk", "npu_moe_gating_top_k", _router_topk, _refuse_router)
implement_on_npu("moe_permute", "npu_moe_init_routing_v2", _permute, _refuse_permute)
implement_on_npu("grouped_linear", "npu_grouped_matmul", _grouped_linear, _refuse_grouped)
implement_on_npu("moe_unpermute", "npu_moe_token_unpermute", _unpermute, _refuse_unpermute)
implement_on_npu("add_rms_norm_cast", "npu_rms_norm", _add_rms_norm_cast, _refuse_norm)
