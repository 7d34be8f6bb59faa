// The computations that the table names and ATen has not got ready-made. Shapes beside the arguments.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

using at::Tensor;
using Integers = std::vector<int64_t>;

// Stores a result where the caller wants it. Unlike copy_ it does not broadcast: a wrong shape is an error.
void put(const Tensor& out, const Tensor& value);
void put_both(const std::tuple<Tensor, Tensor>& values, const Tensor& first, const Tensor& second);
// What the emulation does not compute must not be given.
void expect_absent(const std::vector<std::pair<const char*, Tensor>>& tensors);

c10::List<std::optional<Tensor>> indices_of(const std::vector<Tensor>& tensors);

// x: [..., hidden]; gamma: [hidden]; y: as x; rstd: [..., 1] float32
void rms_norm(const Tensor& x, const Tensor& gamma, double epsilon, const Tensor& y, const Tensor& rstd);
// x, y: [..., 2·width] → [..., width] along dim
void swiglu(const Tensor& x, int64_t dim, const Tensor& y);
// x: [..., head_dim]; cos, sin broadcast against it
Tensor rotated(const Tensor& x, const Tensor& cos, const Tensor& sin, const std::string& mode);
std::string rotary_mode(int64_t mode);
// cache: [positions, rotary], cosines before sines; gives the rows of the tokens: [tokens, rotary]
Tensor angles_at(const Tensor& cache, const Tensor& positions, const Integers& sections, int64_t cache_mode);
// x: [tokens, heads·head_dim], turned in the first `rotary` dims of each head
Tensor partly_rotated(const Tensor& x, const Tensor& angles, int64_t head_dim, bool pairs_halves);

// key, value: [tokens, kv_heads, head_dim]; caches: [blocks, block_tokens, kv_heads, head_dim]; slots: [tokens]
void scatter_kv(const Tensor& key, const Tensor& key_cache, const Tensor& slots, const Tensor& value,
                const Tensor& value_cache, const std::string& cache_mode);

struct Attention {
  Tensor query;  // [T, N, D], [B, S, N, D], [B, N, S, D] or [B, S, N·D], as layout says
  // One each: as query, or blocks [blocks, block_tokens, kv_heads·D] or [blocks, kv_heads, block_tokens, D].
  std::vector<Tensor> key, value;
  Tensor mask;                            // may be undefined; true: not seen
  std::optional<Integers> query_lengths;  // TND: ends (cumulative); otherwise one length per sequence
  std::optional<Integers> kv_lengths;     // TND without blocks: ends; otherwise lengths
  Tensor block_table;                     // [B, max_blocks] int32, or undefined
  int64_t num_heads, num_kv_heads, sparse_mode, block_tokens;
  double scale;
  std::string layout;
  Tensor out;  // as query
  Tensor lse;  // [T, N, 1] or [B, N, S, 1] float32, or without elements
};
void attention(const Attention& call);

// x, bias: [rows, experts]; gives weights and experts: [rows, k]
std::tuple<Tensor, Tensor> gated_by_softmax(const Tensor& x, int64_t k, bool renormalize);
std::tuple<Tensor, Tensor> gated(const Tensor& x, const Tensor& bias, int64_t k, int64_t norm_type, double factor,
                                 double eps);
// Rows in the order of their experts: x: [tokens, width]; experts: [tokens, k]; expanded: [tokens·k, width]; places:
// [tokens·k]; ends: [num_experts]
struct Routing {
  Tensor x, experts;
  int64_t active_num, num_experts, drop_pad_mode, count_kind;
  bool has_counts;
  int64_t quant_mode;
  Integers range;
  int64_t row_kind;
  Tensor expanded, places, ends;
};
void route(const Routing& call);
// x: [rows, in]; weight: [groups, in, out]; ends: [groups]; y: [rows, out]
struct GroupedProduct {
  std::vector<Tensor> x, weight;
  Tensor ends;
  int64_t split_item, group_type, group_list_type, act_type;
  std::vector<Tensor> y;
};
void grouped_product(const GroupedProduct& call);
// rows: [tokens·k, width]; places: [tokens·k]; weights: [tokens, k]; y: [tokens, width]
void gather_weighted(const Tensor& rows, const Tensor& places, const Tensor& weights, const Tensor& y);
// Where each choice stands when the choices of all rows are laid out by rank: [rows, k] int32
Tensor gated_rows(const Tensor& experts);
