#include "signatures.h"

#include <algorithm>
#include <stdexcept>

namespace tv {

static std::string refuse_rotary(int64_t rotary, int64_t head_dim) {
    if (rotary % 2 == 0 && rotary <= head_dim) return "";
    return "rotary " + std::to_string(rotary) + " is not an even number up to head_dim " + std::to_string(head_dim);
}

static std::string refuse_heads(int64_t num_heads, int64_t num_kv_heads) {
    if (num_heads % num_kv_heads == 0) return "";
    return "num_heads " + std::to_string(num_heads) + " is not a multiple of num_kv_heads " +
           std::to_string(num_kv_heads);
}

static std::string refuse_slot_tokens(int64_t slot_tokens) {
    if (slot_tokens % kBlockTokens == 0) return "";
    return "slot_tokens " + std::to_string(slot_tokens) + " is not a multiple of " + std::to_string(kBlockTokens);
}

static std::string refuse_slot_stride(const Operand& cache) {
    if (cache.dtype != DType::int8 || cache.stride % 2 == 0) return "";
    return "cache: a slot of " + std::to_string(cache.stride) + " bytes, the scales of int8 are bfloat16";
}

static std::string refuse_head_dim(int64_t head_dim) {
    if (head_dim > kMaxHeadDim) {
        return "head_dim " + std::to_string(head_dim) + " is more than " + std::to_string(kMaxHeadDim);
    }
    return head_dim % 2 == 0 ? "" : "head_dim " + std::to_string(head_dim) + " is odd";
}

static std::string refuse_count(int64_t count, int64_t size, const char* what) {
    if (count <= size) return "";
    return std::to_string(count) + " of " + std::to_string(size) + " " + what + " cannot be chosen";
}

static std::string first_reason(std::initializer_list<std::string> reasons) {
    for (const std::string& reason : reasons) {
        if (!reason.empty()) return reason;
    }
    return "";
}

static const std::vector<DType> kFloat = {DType::float32};
static const std::vector<DType> kStored = {DType::float32, DType::bfloat16};
static const std::vector<DType> kWeights = {DType::float32, DType::bfloat16, DType::int8};
static const std::vector<DType> kCache = {DType::float32, DType::bfloat16, DType::int8};
static const std::vector<DType> kInt = {DType::int32};
static const std::vector<const char*> kTokens = {"tokens"};
static const std::vector<const char*> kRows = {"rows"};
static const std::vector<const char*> kEither = {"tokens", "rows"};

static const std::vector<Signature> kSignatures = {
    {"embed", &KernelTable::embed, kEither,
     {{"tokens", kInt}, {"table", kWeights}, {"out", kFloat}}, {"hidden", "is_panels"}, {}},
    {"rms_norm", &KernelTable::rms_norm, kEither,
     {{"x", kFloat}, {"weight", kFloat}, {"out", kFloat}}, {"num_groups", "size"}, {"eps"}},
    {"add", &KernelTable::add, kEither, {{"a", kFloat}, {"b", kFloat}, {"out", kFloat}}, {"width"}, {}},
    {"add_rms_norm", &KernelTable::add_rms_norm, kEither,
     {{"a", kFloat}, {"b", kFloat}, {"weight", kFloat}, {"sum", kFloat}, {"out", kFloat}}, {"size"}, {"eps"}},
    {"linear", &KernelTable::linear, kEither,
     {{"x", kFloat}, {"weight", kWeights}, {"bias", kFloat, true}, {"out", kFloat}, {"largest", kFloat, true}},
     {"in", "out"}, {}},
    {"rope_angles", &KernelTable::rope_angles, kEither,
     {{"positions", kInt}, {"inv_freq", kFloat}, {"out", kFloat}}, {"half"}, {"scale"}},
    {"rope", &KernelTable::rope, kEither,
     {{"x", kFloat}, {"angles", kFloat}, {"out", kFloat}}, {"num_heads", "head_dim", "rotary"}, {},
     [](const Call& call) { return refuse_rotary(call.integers[2], call.integers[1]); }},
    {"kv_store", &KernelTable::kv_store, kTokens,
     {{"k", kFloat}, {"v", kFloat}, {"cache", kCache}, {"positions", kInt}, {"starts", kInt}, {"slots", kInt}},
     {"num_kv_heads", "head_dim", "slot_tokens"}, {},
     [](const Call& call) {
         return first_reason({refuse_head_dim(call.integers[1]), refuse_slot_tokens(call.integers[2]),
                              refuse_slot_stride(call.operands[2])});
     }},
    {"rope_kv_store", &KernelTable::rope_kv_store, kTokens,
     {{"q", kFloat}, {"k", kFloat}, {"v", kFloat}, {"angles", kFloat}, {"q_out", kFloat}, {"cache", kCache},
      {"positions", kInt}, {"starts", kInt}, {"slots", kInt}},
     {"num_heads", "num_kv_heads", "head_dim", "rotary", "slot_tokens"}, {},
     [](const Call& call) {
         return first_reason({refuse_heads(call.integers[0], call.integers[1]), refuse_head_dim(call.integers[2]),
                              refuse_rotary(call.integers[3], call.integers[2]), refuse_slot_tokens(call.integers[4]),
                              refuse_slot_stride(call.operands[5])});
     }},
    {"attention", &KernelTable::attention, kTokens,
     {{"q", kFloat}, {"cache", kCache}, {"out", kFloat}, {"positions", kInt}, {"starts", kInt}, {"slots", kInt}},
     {"num_heads", "num_kv_heads", "head_dim", "slot_tokens"}, {"scale"},
     [](const Call& call) {
         return first_reason({refuse_heads(call.integers[0], call.integers[1]), refuse_head_dim(call.integers[2]),
                              refuse_slot_tokens(call.integers[3]), refuse_slot_stride(call.operands[1])});
     },
     true},
    {"silu_mul", &KernelTable::silu_mul, kEither, {{"gate", kFloat}, {"up", kFloat}, {"out", kFloat}}, {"width"}, {}},
    {"take_rows", &KernelTable::take_rows, kRows, {{"x", kFloat}, {"rows", kInt}, {"out", kFloat}}, {"width"}, {}},
    {"cast", &KernelTable::cast, kEither, {{"x", kStored}, {"out", kStored}}, {"width"}, {},
     [](const Call& call) -> std::string {
         return call.operands[0].dtype != call.operands[1].dtype ? "" : "x and out have the same dtype";
     }},
    {"add_rms_norm_cast", &KernelTable::add_rms_norm_cast, kEither,
     {{"a", kFloat}, {"b", kFloat}, {"weight", kFloat}, {"sum", kFloat}, {"out", kStored}, {"wide", kFloat}},
     {"size"}, {"eps"}},
    {"top_k", &KernelTable::top_k, kEither, {{"logits", kFloat}, {"values", kFloat}, {"tokens", kInt}},
     {"vocab", "count"}, {},
     [](const Call& call) { return refuse_count(call.integers[1], call.integers[0], "logits"); }},
    {"router_topk", &KernelTable::router_topk, kEither,
     {{"logits", kFloat}, {"weights", kFloat}, {"experts", kInt}},
     {"num_experts", "chosen", "is_sigmoid", "is_renormalised"}, {},
     [](const Call& call) { return refuse_count(call.integers[1], call.integers[0], "experts"); }},
    {"moe_permute", &KernelTable::moe_permute, kTokens,
     {{"x", kFloat}, {"experts", kInt}, {"out", kFloat}, {"places", kInt}, {"ends", kInt}},
     {"width", "chosen", "num_experts"}, {}},
    {"grouped_linear", &KernelTable::grouped_linear, kTokens,
     {{"x", kFloat}, {"weight", kStored}, {"ends", kInt}, {"out", kFloat}}, {"chosen", "in", "out", "num_experts"}, {}},
    {"moe_unpermute", &KernelTable::moe_unpermute, kTokens,
     {{"x", kFloat}, {"places", kInt}, {"weights", kFloat}, {"out", kFloat}}, {"width", "chosen"}, {}},
};

const Signature& signature_named(const std::string& kernel) {
    std::string known;
    for (const Signature& signature : kSignatures) {
        if (kernel == signature.kernel) return signature;
        known += (known.empty() ? "" : ", ") + std::string(signature.kernel);
    }
    throw std::invalid_argument("kernel: '" + kernel + "' is not known; known: " + known);
}

static const char* name_of(DType dtype) {
    switch (dtype) {
        case DType::float32: return "float32";
        case DType::bfloat16: return "bfloat16";
        case DType::int32: return "int32";
        case DType::int8: return "int8";
    }
    return "";
}

static int64_t bytes_of(DType dtype) {
    if (dtype == DType::int8) return 1;
    return dtype == DType::bfloat16 ? 2 : 4;
}

template <class T, class Name>
static std::string listed(const std::vector<T>& items, Name name) {
    std::string text;
    for (const T& item : items) text += (text.empty() ? "" : ", ") + std::string(name(item));
    return text;
}

static const char* itself(const char* name) { return name; }

static void require(bool is_right, const Signature& signature, const std::string& sentence) {
    if (!is_right) throw std::invalid_argument(std::string(signature.kernel) + ": " + sentence);
}

static void check_operand(const Signature& signature, const OperandRule& rule, const Operand& operand) {
    const std::string name = rule.name;
    if (operand.address == nullptr) {
        require(rule.is_optional, signature, name + " is absent (address 0)");
        return;
    }
    const auto& dtypes = rule.dtypes;
    require(std::find(dtypes.begin(), dtypes.end(), operand.dtype) != dtypes.end(), signature,
            name + " is " + name_of(operand.dtype) + ", it takes " + listed(dtypes, name_of));
    const int64_t bytes = bytes_of(operand.dtype);
    require(operand.dtype != DType::int8 || reinterpret_cast<uintptr_t>(operand.address) % 2 == 0, signature,
            name + ": address is odd, the scales of int8 are bfloat16");
    require(reinterpret_cast<uintptr_t>(operand.address) % bytes == 0 && operand.stride % bytes == 0, signature,
            name + ": address or row stride is not a multiple of its element's " + std::to_string(bytes) + " bytes");
}

Call checked_call(const Signature& signature, const std::string& extent, const std::vector<Operand>& operands,
                  const std::vector<int64_t>& integers, const std::vector<double>& numbers) {
    const auto& extents = signature.extents;
    require(std::find(extents.begin(), extents.end(), extent) != extents.end(), signature,
            "extent is '" + extent + "', it takes " + listed(extents, itself));
    require(operands.size() == signature.operands.size(), signature,
            std::to_string(operands.size()) + " operands given, it takes " + std::to_string(signature.operands.size()) +
                " (" + listed(signature.operands, [](const OperandRule& rule) { return rule.name; }) + ")");
    require(integers.size() == signature.integers.size(), signature,
            std::to_string(integers.size()) + " integers given, it takes " + std::to_string(signature.integers.size()) +
                " (" + listed(signature.integers, itself) + ")");
    require(numbers.size() == signature.numbers.size(), signature,
            std::to_string(numbers.size()) + " numbers given, it takes " + std::to_string(signature.numbers.size()) +
                " (" + listed(signature.numbers, itself) + ")");
    Call call = {};
    for (size_t i = 0; i < operands.size(); ++i) {
        check_operand(signature, signature.operands[i], operands[i]);
        call.operands[i] = operands[i];
    }
    for (size_t i = 0; i < integers.size(); ++i) {
        const std::string name = signature.integers[i];
        const bool may_be_zero = name.rfind("is_", 0) == 0 || name == "rotary";
        require(integers[i] >= (may_be_zero ? 0 : 1), signature,
                name + " is " + std::to_string(integers[i]) + ", it must be positive");
        call.integers[i] = integers[i];
    }
    if (!numbers.empty()) call.number = static_cast<float>(numbers[0]);
    if (signature.refuse == nullptr) return call;
    const std::string reason = signature.refuse(call);
    require(reason.empty(), signature, reason);
    return call;
}

}  // namespace tv
