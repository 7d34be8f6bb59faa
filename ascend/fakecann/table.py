"""The aclnn operators that the fake computes: signature, meaning and source of each, one row an operator.

A signature is what the caller puts on the stack: a wrong one corrupts memory instead of failing, so every row has a
test that compares it with plain torch. An operator without a row is refused by its name.
"""

from __future__ import annotations

from typing import NamedTuple

# Where a signature was read: the call that the wheel compiles in, in github.com/Ascend/op-plugin (branch master,
# August 2026), under op_plugin/ops/opapi or, for the calls that are generated, op_plugin/config.
_GENERATED = "op_plugin_functions.yaml"
# In github.com/Ascend/pytorch.
_COPY = "torch_npu/csrc/aten/ops/op_api/CopyKernelOpApi.cpp"
_FORMAT_CAST = "torch_npu/csrc/aten/common/FormatCastKernelNpu.cpp"


class Operator(NamedTuple):
    """One aclnn operator, of which CANN wants two entry points."""

    name: str
    parameters: str  # "type name, …", before the two that end every call
    compute: str  # C++ over the parameters
    source: str  # where the signature was read
    absent: tuple[str, ...] = ()  # optional tensors that must not be given: what they ask for is not computed


def _unary(name: str, function: str) -> Operator:
    return Operator(f"aclnn{name}", "Tensor self, Tensor out", f"put(out, at::{function}(self))", _GENERATED)


def _compare(name: str, function: str) -> tuple[Operator, Operator]:
    source = f"{name}KernelNpuOpApi.cpp"
    return (
        Operator(
            f"aclnn{name}Tensor",
            "Tensor self, Tensor other, Tensor out",
            f"put(out, at::{function}(self, other))",
            source,
        ),
        Operator(
            f"aclnn{name}Scalar",
            "Tensor self, Scalar other, Tensor out",
            f"put(out, at::{function}(self, other))",
            source,
        ),
    )


def _arithmetic(name: str, function: str, alpha: bool) -> tuple[Operator, ...]:
    """aclnnX, aclnnXs and their in-place twins: tensor with tensor, tensor with scalar."""
    extra, argument = (", Scalar alpha", ", alpha") if alpha else ("", "")
    source = f"{name}KernelNpuOpApi.cpp"
    return tuple(
        operator
        for suffix, other in (("", "Tensor other"), ("s", "Scalar other"))
        for operator in (
            Operator(
                f"aclnn{name}{suffix}",
                f"Tensor self, {other}{extra}, Tensor out",
                f"put(out, at::{function}(self, other{argument}))",
                source,
            ),
            Operator(
                f"aclnnInplace{name}{suffix}",
                f"Tensor self, {other}{extra}",
                f"self.{function}_(other{argument})",
                source,
            ),
        )
    )


# Lists that quantise, or add to, a grouped product: none of it is emulated.
_NOT_GROUPED = (
    "bias", "scale", "offset", "antiquant_scale", "antiquant_offset", "per_token_scale", "activation_input",
    "activation_quant_scale", "activation_quant_offset",
)  # fmt: skip


def _lists(names: tuple[str, ...]) -> str:
    return ", ".join(f"Tensor[]? {name}" for name in names)


_MATMUL = "Tensor self, Tensor other, Tensor out, int8 cube_math_type"

_ATTENTION_FIRST = (
    "Tensor query, Tensor[] key, Tensor[] value, Tensor? pse_shift, Tensor? atten_mask, int[]? actual_seq_lengths,"
    " int[]? actual_seq_lengths_kv, Tensor? dequant_scale1, Tensor? quant_scale1, Tensor? dequant_scale2,"
    " Tensor? quant_scale2, Tensor? quant_offset2, Tensor? antiquant_scale, Tensor? antiquant_offset,"
    " Tensor? block_table, Tensor? query_padding_size, Tensor? kv_padding_size, Tensor? key_antiquant_scale,"
    " Tensor? key_antiquant_offset, Tensor? value_antiquant_scale, Tensor? value_antiquant_offset,"
    " Tensor? key_shared_prefix, Tensor? value_shared_prefix, int[]? actual_shared_prefix_len, Tensor? query_rope,"
    " Tensor? key_rope, Tensor? key_rope_antiquant_scale"
)
_ATTENTION_SETTINGS = (
    ", int num_heads, double scale, int pre_tokens, int next_tokens, str input_layout, int num_key_value_heads,"
    " int sparse_mode, int inner_precise, int block_size, int antiquant_mode, bool softmax_lse_flag,"
    " int key_antiquant_mode, int value_antiquant_mode"
)
_ATTENTION_OUTPUTS = ", Tensor attention_out, Tensor softmax_lse"
_ATTENTION_COMPUTED = {"query", "atten_mask", "block_table", "attention_out", "softmax_lse"}


def _attention(version: int, tensors: str, settings: str, source: str) -> Operator:
    """What is not passed on changes no result here: it belongs to refused modes and tensors, or chooses a precision."""
    parameters = _ATTENTION_FIRST + tensors + _ATTENTION_SETTINGS + settings + _ATTENTION_OUTPUTS
    pairs = (parameter.split() for parameter in parameters.split(", "))
    absent = tuple(name for kind, name in pairs if kind == "Tensor?" and name not in _ATTENTION_COMPUTED)
    compute = (
        "attention({query, key, value, atten_mask, actual_seq_lengths, actual_seq_lengths_kv, block_table, num_heads,"
        " num_key_value_heads, sparse_mode, block_size, scale, input_layout, attention_out, softmax_lse})"
    )
    return Operator(f"aclnnFusedInferAttentionScoreV{version}", parameters, compute, source, absent)


OPERATORS: tuple[Operator, ...] = (
    # elementwise
    *_arithmetic("Add", "add", alpha=True),
    *_arithmetic("Sub", "sub", alpha=True),
    *_arithmetic("Mul", "mul", alpha=False),
    *_arithmetic("Div", "div", alpha=False),
    *(_unary(name, name.lower()) for name in ("Abs", "Cos", "Exp", "Neg", "Rsqrt", "Sigmoid", "Silu", "Sin", "Sqrt")),
    _unary("IsFinite", "isfinite"),
    _unary("LogicalNot", "logical_not"),
    *(row for name in ("Eq", "Ne", "Lt", "Le", "Gt", "Ge") for row in _compare(name, name.lower())),
    Operator(
        "aclnnPowTensorScalar",
        "Tensor self, Scalar exponent, Tensor out",
        "put(out, at::pow(self, exponent))",
        _GENERATED,
    ),
    Operator(
        "aclnnFloorDivides",
        "Tensor self, Scalar other, Tensor out",
        "put(out, at::floor_divide(self, other))",
        "FloorDivideKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnRemainderTensorScalar",
        "Tensor self, Scalar other, Tensor out",
        "put(out, at::remainder(self, other))",
        "RemainderKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnMaximum",
        "Tensor self, Tensor other, Tensor out",
        "put(out, at::maximum(self, other))",
        "MaxKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnMinimum",
        "Tensor self, Tensor other, Tensor out",
        "put(out, at::minimum(self, other))",
        "MinKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnSWhere",
        "Tensor condition, Tensor self, Tensor other, Tensor out",
        "put(out, at::where(condition, self, other))",
        "WhereKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnInplaceMaskedFillScalar",
        "Tensor self, Tensor mask, Scalar value",
        "self.masked_fill_(mask, value)",
        "MaskedFillKernelNpuOpApi.cpp",
    ),
    # making, copying, casting
    Operator("aclnnInplaceCopy", "Tensor self, Tensor other", "self.copy_(other)", _COPY),
    Operator("aclnnCast", "Tensor self, dtype dtype, Tensor out", "put(out, self.to(dtype))", "CastKernelNpuOpApi.cpp"),
    Operator("aclnnInplaceZero", "Tensor self", "self.zero_()", "ZerosKernelNpuOpApi.cpp"),
    Operator("aclnnInplaceOne", "Tensor self", "self.fill_(1)", "OnesKernelNpuOpApi.cpp"),
    Operator("aclnnInplaceFillScalar", "Tensor self, Scalar value", "self.fill_(value)", "FillKernelNpuOpApi.cpp"),
    Operator("aclnnInplaceFillTensor", "Tensor self, Tensor value", "self.fill_(value)", "FillKernelNpuOpApi.cpp"),
    Operator(
        "aclnnArange",
        "Scalar start, Scalar end, Scalar step, Tensor out",
        "put(out, at::arange(start, end, step, out.options()))",
        "ArangeKernelNpuOpApi.cpp",
    ),
    # indexing
    Operator(
        "aclnnCat", "Tensor[] tensors, int dim, Tensor out", "put(out, at::cat(tensors, dim))", "CatKernelNpuOpApi.cpp"
    ),
    Operator(
        "aclnnIndex",
        "Tensor self, Tensor[] indices, Tensor out",
        "put(out, at::index(self, indices_of(indices)))",
        "IndexKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnIndexSelect",
        "Tensor self, int dim, Tensor index, Tensor out",
        "put(out, at::index_select(self, dim, index))",
        "IndexSelectKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnIndexPutImpl",
        "Tensor self, Tensor[] indices, Tensor values, bool accumulate, bool unsafe",
        "at::index_put_(const_cast<Tensor&>(self), indices_of(indices), values, accumulate)",
        "IndexPutKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnEmbedding",
        "Tensor weight, Tensor indices, Tensor out",
        "put(out, at::embedding(weight, indices))",
        "EmbeddingKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnGather",
        "Tensor self, int dim, Tensor index, Tensor out",
        "put(out, at::gather(self, dim, index))",
        "GatherKernelNpuOpApi.cpp",
    ),
    # reductions
    Operator(
        "aclnnMean",
        "Tensor self, int[] dims, bool keepdim, dtype dtype, Tensor out",
        "put(out, at::mean(self, dims, keepdim, dtype))",
        "MeanKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnReduceSum",
        "Tensor self, int[] dims, bool keepdim, dtype dtype, Tensor out",
        "put(out, at::sum(self, dims, keepdim, dtype))",
        "SumKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnCumsum",
        "Tensor self, int dim, dtype dtype, Tensor out",
        "put(out, at::cumsum(self, dim, dtype))",
        "CumsumKernelNpuOpApi.cpp",
    ),
    Operator("aclnnMax", "Tensor self, Tensor out", "put(out, at::max(self))", "MaxV1KernelNpuOpApi.cpp"),
    Operator(
        "aclnnAmax",
        "Tensor self, int[] dims, bool keepdim, Tensor out",
        "put(out, at::amax(self, dims, keepdim))",
        _GENERATED,
    ),
    Operator(
        "aclnnArgMax",
        "Tensor self, int dim, bool keepdim, Tensor out",
        "put(out, at::argmax(self, dim, keepdim))",
        "ArgmaxKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnAll",
        "Tensor self, int[] dims, bool keepdim, Tensor out",
        "put(out, at::all(self, dims, keepdim))",
        "AllKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnAny",
        "Tensor self, int[] dims, bool keepdim, Tensor out",
        "put(out, at::any(self, dims, keepdim))",
        "AnyKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnTopkV2",
        "Tensor self, int k, int dim, bool largest, bool sorted, int sort_policy, Tensor values, Tensor indices",
        "put_both(at::topk(self, k, dim, largest, sorted), values, indices)",
        "TopKKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnSort",
        "Tensor self, bool stable, int dim, bool descending, Tensor values, Tensor indices",
        "put_both(at::sort(self, stable, dim, descending), values, indices)",
        "SortKernelNpuOpApi.cpp",
    ),
    # matrix products; cube_math_type allows a device less precision than float32, which the CPU has no need of
    Operator("aclnnMm", _MATMUL, "put(out, at::mm(self, other))", "MmKernelNpuOpApi.cpp"),
    Operator("aclnnMatmul", _MATMUL, "put(out, at::matmul(self, other))", "MatmulKernelNpuOpApi.cpp"),
    Operator("aclnnBatchMatMul", _MATMUL, "put(out, at::bmm(self, other))", "BmmKernelNpuOpApi.cpp"),
    Operator(
        "aclnnAddmm",
        "Tensor self, Tensor mat1, Tensor mat2, Scalar beta, Scalar alpha, Tensor out, int8 cube_math_type",
        "put(out, at::addmm(self, mat1, mat2, beta, alpha))",
        "AddmmKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnMatmulWeightNz",
        "Tensor self, Laid other, Tensor out, int8 cube_math_type",
        "put(out, at::matmul(self, logical(other)))",
        "MatmulKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnAddmmWeightNz",
        "Tensor self, Tensor mat1, Laid mat2, Scalar beta, Scalar alpha, Tensor out, int8 cube_math_type",
        "put(out, at::addmm(self, mat1, logical(mat2), beta, alpha))",
        "AddmmKernelNpuOpApi.cpp",
    ),
    Operator("aclnnNpuFormatCast", "Laid source, Laid target", "store(target, logical(source))", _FORMAT_CAST),
    # what a transformer is made of
    Operator(
        "aclnnSoftmax",
        "Tensor self, int dim, Tensor out",
        "put(out, at::softmax(self, dim, out.scalar_type()))",
        _GENERATED,
    ),
    Operator(
        "aclnnRmsNorm",
        "Tensor x, Tensor gamma, double epsilon, Tensor y, Tensor rstd",
        "rms_norm(x, gamma, epsilon, y, rstd)",
        "RmsNormKernelOpApi.cpp",
    ),
    Operator(
        "aclnnAddRmsNorm",
        "Tensor x1, Tensor x2, Tensor gamma, double epsilon, Tensor y, Tensor rstd, Tensor x",
        "put(x, x1 + x2); rms_norm(x, gamma, epsilon, y, rstd)",
        _GENERATED,
    ),
    Operator("aclnnSwiGlu", "Tensor x, int dim, Tensor out", "swiglu(x, dim, out)", _GENERATED),
    Operator(
        "aclnnRotaryPositionEmbeddingV2",
        "Tensor x, Tensor cos, Tensor sin, int mode, Tensor? rotate, Tensor out",
        "put(out, rotated(x, cos, sin, rotary_mode(mode)))",
        "RotaryMulKernelNpuOpApi.cpp",
        absent=("rotate",),
    ),
    Operator(
        "aclnnApplyRotaryPosEmbV2",
        "Tensor query, Tensor key, Tensor cos, Tensor sin, int layout, str rotary_mode",
        "put(query, rotated(query, cos, sin, rotary_mode)); put(key, rotated(key, cos, sin, rotary_mode))",
        "ApplyRotaryPosEmbNpuOpApi.cpp",
    ),
    Operator(
        "aclnnRopeWithSinCosCacheV2",
        "Tensor positions, Tensor query, Tensor key, Tensor cos_sin_cache, int[] mrope_section, int head_size,"
        " bool is_neox_style, int cache_mode, Tensor query_out, Tensor key_out",
        "auto angles = angles_at(cos_sin_cache, positions, mrope_section, cache_mode);"
        " put(query_out, partly_rotated(query, angles, head_size, is_neox_style));"
        " put(key_out, partly_rotated(key, angles, head_size, is_neox_style))",
        "RopeWithSinCosCacheKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnScatterPaKvCache",
        "Tensor key, Tensor key_cache, Tensor slot_mapping, Tensor value, Tensor value_cache, Tensor? compress_lens,"
        " Tensor? compress_seq_offsets, Tensor? seq_lens, str cache_mode, str scatter_mode, int[] strides,"
        " int[] offsets",
        "scatter_kv(key, key_cache, slot_mapping, value, value_cache, cache_mode)",
        "ScatterPaKvCacheNpuOpApi.cpp",
        absent=("compress_lens", "compress_seq_offsets", "seq_lens"),
    ),
    _attention(3, "", "", "FusedInferAttentionScoreKernelNpuOpApi.cpp"),
    _attention(
        4,
        ", Tensor? dequant_scale_query, Tensor? learnable_sink",
        ", int query_quant_mode",
        "FusedInferAttentionScoreV2KernelNpuOpApi.cpp",
    ),
    # mixtures of experts
    Operator(
        "aclnnMoeGatingTopKSoftmax",
        "Tensor x, Tensor? finished, int k, Tensor y, Tensor expert_idx, Tensor row_idx",
        "put_both(gated_by_softmax(x, k, false), y, expert_idx); put(row_idx, gated_rows(expert_idx))",
        "MoeGatingTopKSoftmaxKernelNpuOpApi.cpp",
        absent=("finished",),
    ),
    Operator(
        "aclnnMoeGatingTopKSoftmaxV2",
        "Tensor x, Tensor? finished, int k, int renorm, bool softmax_flag,"
        " Tensor y, Tensor expert_idx, Tensor softmax_out",
        "put_both(gated_by_softmax(x, k, renorm == 1), y, expert_idx);"
        " if (softmax_flag) put(softmax_out, at::softmax(x, -1, at::kFloat))",
        "MoeGatingTopKSoftmaxV2KernelNpuOpApi.cpp",
        absent=("finished",),
    ),
    Operator(
        "aclnnMoeGatingTopK",
        "Tensor x, Tensor? bias, int k, int k_group, int group_count, int group_select_mode, int renorm, int norm_type,"
        " bool out_flag, double routed_scaling_factor, double eps, Tensor y, Tensor expert_idx, Tensor out",
        'TORCH_CHECK(group_count == 1 && renorm == 0 && !out_flag, "groups, renorm and out_flag are not emulated");'
        " put_both(gated(x, bias, k, norm_type, routed_scaling_factor, eps), y, expert_idx)",
        "MoeGatingTopKKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnMoeInitRoutingV3",
        "Tensor x, Tensor expert_idx, Tensor? scale, Tensor? offset, int active_num, int expert_capacity,"
        " int expert_num, int drop_pad_mode, int expert_tokens_num_type, bool expert_tokens_num_flag, int quant_mode,"
        " int[] active_expert_range, int row_idx_type, Tensor expanded_x, Tensor expanded_row_idx,"
        " Tensor expert_tokens, Tensor expanded_scale",
        "route({x, expert_idx, active_num, expert_num, drop_pad_mode, expert_tokens_num_type, expert_tokens_num_flag,"
        " quant_mode, active_expert_range, row_idx_type, expanded_x, expanded_row_idx, expert_tokens})",
        "MoeInitRoutingV2KernelNpuOpApi.cpp",
        absent=("scale", "offset"),
    ),
    Operator(
        "aclnnGroupedMatmulV5",
        f"Tensor[] x, Tensor[] weight, {_lists(_NOT_GROUPED[:6])}, Tensor group_list, {_lists(_NOT_GROUPED[6:])},"
        " int split_item, int group_type, int group_list_type, int act_type, int[]? tuning_config, Tensor[] y,"
        " Tensor[]? act_out, Tensor[]? dynamic_quant_scale",
        f"for (auto& list : {{{', '.join(_NOT_GROUPED)}}}) for (auto& each : list)"
        ' expect_absent({{"a list", each}});'
        " grouped_product({x, weight, group_list, split_item, group_type, group_list_type, act_type, y})",
        "GroupedMatmulKernelNpuOpApi.cpp",
    ),
    Operator(
        "aclnnMoeTokenUnpermute",
        "Tensor permuted_tokens, Tensor sorted_indices, Tensor? probs, bool padded_mode, int[]? restore_shape,"
        " Tensor out",
        'TORCH_CHECK(!padded_mode, "padded_mode is not emulated");'
        " gather_weighted(permuted_tokens, sorted_indices, probs, out)",
        "MoeTokenUnpermuteKernelNpuOpApi.cpp",
    ),
)
