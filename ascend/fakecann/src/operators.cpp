// The LLM's own operators on the CPU: in float32, slowly, as the public documentation of each aclnn operator says.
#include "operators.h"

namespace {

Tensor f32(const Tensor& x) { return x.to(at::kFloat); }

}  // namespace

void put(const Tensor& out, const Tensor& value) {
  TORCH_CHECK(out.sizes() == value.sizes(), "the result is ", value.sizes(), ", its place is ", out.sizes());
  out.copy_(value);
}

void put_both(const std::tuple<Tensor, Tensor>& values, const Tensor& first, const Tensor& second) {
  put(first, std::get<0>(values));
  put(second, std::get<1>(values));
}

void expect_absent(const std::vector<std::pair<const char*, Tensor>>& tensors) {
  for (auto& [name, tensor] : tensors) TORCH_CHECK(!tensor.defined(), name, " is not emulated");
}

c10::List<std::optional<Tensor>> indices_of(const std::vector<Tensor>& tensors) {
  c10::List<std::optional<Tensor>> indices;
  // An undefined or empty index stands for a whole dimension, as a colon does.
  for (auto& tensor : tensors) {
    bool is_colon = !tensor.defined() || (tensor.numel() == 0 && tensor.scalar_type() != at::kBool);
    indices.push_back(is_colon ? std::nullopt : std::optional(tensor));
  }
  return indices;
}

void rms_norm(const Tensor& x, const Tensor& gamma, double epsilon, const Tensor& y, const Tensor& rstd) {
  TORCH_CHECK(gamma.dim() == 1 && gamma.size(0) == x.size(-1), "gamma is ", gamma.sizes(), ", x is ", x.sizes());
  Tensor inverse = at::rsqrt(f32(x).square().mean({-1}, true) + epsilon);
  put(rstd, inverse);
  put(y, f32(x) * inverse * f32(gamma));
}

void swiglu(const Tensor& x, int64_t dim, const Tensor& y) {
  TORCH_CHECK(x.size(dim) % 2 == 0, "dim ", dim, " is ", x.size(dim), ", which is odd");
  auto halves = f32(x).chunk(2, dim);
  put(y, at::silu(halves[0]) * halves[1]);
}

std::string rotary_mode(int64_t mode) {
  TORCH_CHECK(mode == 0 || mode == 1, "rotary mode ", mode, " is not emulated");
  return mode == 0 ? "half" : "interleave";
}

Tensor rotated(const Tensor& x, const Tensor& cos, const Tensor& sin, const std::string& mode) {
  TORCH_CHECK(cos.sizes() == sin.sizes() && cos.dim() == x.dim(), "cos ", cos.sizes(), ", sin ", sin.sizes(), ", x ",
              x.sizes());
  TORCH_CHECK(cos.size(-1) == x.size(-1), "cos covers ", cos.size(-1), " of ", x.size(-1), " dims");
  Tensor turned;
  if (mode == "half") {
    auto halves = f32(x).chunk(2, -1);
    turned = at::cat({-halves[1], halves[0]}, -1);
  } else if (mode == "interleave") {
    auto pairs = f32(x).unflatten(-1, {-1, 2});
    turned = at::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
  } else {
    TORCH_CHECK(false, "rotary mode ", mode, " is not emulated");
  }
  return (f32(x) * f32(cos) + turned * f32(sin)).to(x.scalar_type());
}

Tensor angles_at(const Tensor& cache, const Tensor& positions, const Integers& sections, int64_t cache_mode) {
  for (int64_t section : sections) TORCH_CHECK(section == 0, "mrope sections are not emulated");
  TORCH_CHECK(cache_mode == 0 && positions.dim() == 1, "cache_mode ", cache_mode, ", positions ", positions.sizes(),
              ": not emulated");
  return cache.index_select(0, positions);
}

Tensor partly_rotated(const Tensor& x, const Tensor& angles, int64_t head_dim, bool pairs_halves) {
  int64_t rotary = angles.size(-1);
  TORCH_CHECK(rotary <= head_dim && rotary % 2 == 0, rotary, " angles for heads of ", head_dim);
  Tensor heads = x.unflatten(-1, {-1, head_dim});
  auto halves = angles.unsqueeze(1).chunk(2, -1);
  auto spread = [&](const Tensor& half) {
    return pairs_halves ? at::cat({half, half}, -1) : half.repeat_interleave(2, -1);
  };
  Tensor turned =
      rotated(heads.narrow(-1, 0, rotary), spread(halves[0]), spread(halves[1]), pairs_halves ? "half" : "interleave");
  return at::cat({turned, heads.narrow(-1, rotary, head_dim - rotary)}, -1).flatten(-2);
}

void scatter_kv(const Tensor& key, const Tensor& key_cache, const Tensor& slots, const Tensor& value,
                const Tensor& value_cache, const std::string& cache_mode) {
  TORCH_CHECK(cache_mode == "Norm", "cache_mode ", cache_mode, " is not emulated");
  TORCH_CHECK(key.dim() == 3 && key_cache.dim() == 4 && slots.dim() == 1, "key ", key.sizes(), ", key_cache ",
              key_cache.sizes(), ", slot_mapping ", slots.sizes(), ": only 3, 4 and 1 axes are emulated");
  TORCH_CHECK(key.size(0) == slots.size(0), key.size(0), " tokens, ", slots.size(0), " slots");
  int64_t room = key_cache.size(0) * key_cache.size(1);
  Tensor where = slots.to(at::kLong);
  TORCH_CHECK(!where.numel() || (where.min().item<int64_t>() >= 0 && where.max().item<int64_t>() < room),
              "a slot lies outside [0, ", room, "): a real device would write there");
  // view, not reshape: a cache that cannot be seen as rows must not be written through a copy.
  key_cache.view({room, key_cache.size(2), key_cache.size(3)}).index_copy_(0, where, key.to(key_cache.scalar_type()));
  value_cache.view({room, value_cache.size(2), value_cache.size(3)})
      .index_copy_(0, where, value.to(value_cache.scalar_type()));
}

std::tuple<Tensor, Tensor> gated_by_softmax(const Tensor& x, int64_t k, bool renormalize) {
  auto [best, chosen] = at::topk(renormalize ? f32(x) : at::softmax(f32(x), -1), k);
  return {renormalize ? at::softmax(best, -1) : best, chosen};
}

std::tuple<Tensor, Tensor> gated(const Tensor& x, const Tensor& bias, int64_t k, int64_t norm_type, double factor,
                                 double eps) {
  TORCH_CHECK(norm_type == 0 || norm_type == 1, "norm_type ", norm_type, " is not emulated");
  Tensor scores = norm_type == 1 ? at::sigmoid(f32(x)) : at::softmax(f32(x), -1);
  // The page's own definition sorts stably: of equal scores the lower expert is first.
  Tensor order = std::get<1>(at::sort(bias.defined() ? scores + f32(bias) : scores, true, -1, true));
  Tensor chosen = order.narrow(-1, 0, k);
  Tensor best = scores.gather(-1, chosen);
  return {(norm_type == 1 ? best / (best.sum({-1}, true) + eps) : best) * factor, chosen};
}

Tensor gated_rows(const Tensor& experts) {
  int64_t k = experts.size(-1), rows = experts.numel() / k;
  return at::arange(rows * k, at::kInt).view({k, rows}).t().reshape(experts.sizes());
}
