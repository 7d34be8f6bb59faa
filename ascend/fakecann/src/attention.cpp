// Fused attention over dense or paged keys and values: one sequence at a time, softmax in float32.
// Refuses the layouts and sparse modes that it does not compute.
#include <limits>

#include "operators.h"

namespace {

struct Sequence {
  int64_t index;
  int64_t query_start, query_length;
  int64_t kv_start, kv_length;
};

bool is_ragged(const Attention& call) { return call.layout == "TND"; }

// Lengths from what the caller says: for a ragged batch they are ends, otherwise lengths, and absent means all.
std::vector<int64_t> lengths_of(const std::optional<Integers>& given, bool are_ends, int64_t sequences, int64_t all) {
  if (!given) return Integers(sequences, all);
  Integers lengths = *given;
  if (!are_ends && lengths.size() == 1) lengths.assign(sequences, given->front());
  TORCH_CHECK(int64_t(lengths.size()) == sequences, lengths.size(), " lengths for ", sequences, " sequences");
  for (int64_t i = sequences - 1; are_ends && i > 0; --i) lengths[i] -= lengths[i - 1];
  for (int64_t length : lengths)
    TORCH_CHECK(length >= 0, "a length is ", length, ": ", are_ends ? "ends must not fall" : "");
  return lengths;
}

std::vector<Sequence> sequences_of(const Attention& call) {
  bool is_paged = call.block_table.defined();
  if (is_ragged(call))
    TORCH_CHECK(call.query_lengths && call.kv_lengths, "TND wants actual_seq_lengths of query and kv");
  if (is_paged) TORCH_CHECK(call.kv_lengths, "blocks want actual_seq_lengths_kv");
  int64_t sequences = is_ragged(call) ? int64_t(call.query_lengths->size()) : call.query.size(0);
  int64_t axis = call.layout == "BNSD" ? 2 : 1;
  auto queries =
      lengths_of(call.query_lengths, is_ragged(call), sequences, is_ragged(call) ? 0 : call.query.size(axis));
  auto kvs = lengths_of(call.kv_lengths, is_ragged(call) && !is_paged, sequences,
                        is_ragged(call) || is_paged ? 0 : call.key[0].size(axis));
  std::vector<Sequence> all;
  int64_t query_start = 0, kv_start = 0;
  for (int64_t i = 0; i < sequences; ++i) {
    all.push_back({i, query_start, queries[i], kv_start, kvs[i]});
    query_start += queries[i];
    kv_start += kvs[i];
  }
  if (is_ragged(call))
    TORCH_CHECK(query_start == call.query.size(0), "queries end at ", query_start, " of ", call.query.size(0));
  return all;
}

// x as [length, heads, D], a view: attention writes its result through it.
Tensor rows_of(const Tensor& x, const std::string& layout, int64_t index, int64_t start, int64_t length,
               int64_t heads) {
  if (layout == "TND") return x.narrow(0, start, length);
  if (layout == "BSND") return x[index].narrow(0, 0, length);
  if (layout == "BNSD") return x[index].narrow(1, 0, length).transpose(0, 1);
  if (layout == "BSH") return x[index].narrow(0, 0, length).unflatten(-1, {heads, -1});
  TORCH_CHECK(false, "input_layout ", layout, " is not emulated");
}

Tensor blocks_of(const Tensor& cache, const Attention& call, const Sequence& sequence) {
  bool is_head_major = cache.dim() == 4;
  TORCH_CHECK(is_head_major || cache.dim() == 3, "blocks have ", cache.dim(), " axes, 3 or 4 are emulated");
  TORCH_CHECK(cache.size(is_head_major ? 2 : 1) == call.block_tokens, "block_size ", call.block_tokens, ", blocks are ",
              cache.sizes());
  if (is_head_major)
    TORCH_CHECK(cache.size(1) == call.num_kv_heads, "blocks are ", cache.sizes(), ", kv heads ", call.num_kv_heads);
  int64_t needed = (sequence.kv_length + call.block_tokens - 1) / call.block_tokens;
  TORCH_CHECK(needed <= call.block_table.size(1), needed, " blocks needed, the table names ", call.block_table.size(1));
  Tensor blocks = call.block_table[sequence.index].narrow(0, 0, needed).to(at::kLong);
  TORCH_CHECK(!needed || (blocks.min().item<int64_t>() >= 0 && blocks.max().item<int64_t>() < cache.size(0)),
              "a block lies outside [0, ", cache.size(0), ")");
  Tensor taken = cache.index_select(0, blocks);
  Tensor rows = is_head_major ? taken.transpose(1, 2) : taken.unflatten(-1, {call.num_kv_heads, -1});
  return rows.flatten(0, 1).narrow(0, 0, sequence.kv_length);
}

// [queries, kv], true where not seen; undefined: everything is seen.
Tensor hidden(const Attention& call, const Sequence& sequence) {
  int64_t queries = sequence.query_length, kv = sequence.kv_length;
  if (call.sparse_mode == 0) {
    if (!call.mask.defined()) return {};
    Tensor mask =
        call.mask.dim() == 2 ? call.mask : call.mask.flatten(0, -3)[call.mask.size(0) == 1 ? 0 : sequence.index];
    return mask.narrow(0, 0, queries).narrow(1, 0, kv).to(at::kBool);
  }
  TORCH_CHECK(call.sparse_mode == 2 || call.sparse_mode == 3, "sparse_mode ", call.sparse_mode, " is not emulated");
  TORCH_CHECK(call.mask.defined() && call.mask.size(-1) == 2048 && call.mask.numel() == 2048 * 2048, "sparse_mode ",
              call.sparse_mode, " wants an attention mask of 2048 × 2048");
  Tensor causal = at::ones({2048, 2048}, at::kBool).triu(1);
  TORCH_CHECK(call.mask.to(at::kBool).view({2048, 2048}).equal(causal),
              "the mask hides something else than what lies ahead");
  int64_t shift = call.sparse_mode == 3 ? kv - queries : 0;
  TORCH_CHECK(shift >= 0, queries, " queries see ", kv, " keys: the first ones see none");
  return at::ones({queries, kv}, at::kBool).triu(shift + 1);
}

void attend(const Attention& call, const Sequence& sequence) {
  auto rows = [&](const Tensor& x, int64_t start, int64_t length, int64_t heads) {
    return rows_of(x, call.layout, sequence.index, start, length, heads);
  };
  bool is_paged = call.block_table.defined();
  auto context = [&](const Tensor& x) {
    Tensor taken =
        is_paged ? blocks_of(x, call, sequence) : rows(x, sequence.kv_start, sequence.kv_length, call.num_kv_heads);
    TORCH_CHECK(taken.size(1) == call.num_kv_heads, taken.size(1), " kv heads, ", call.num_kv_heads, " were said");
    return taken.to(at::kFloat)
        .transpose(0, 1)
        .repeat_interleave(call.num_heads / call.num_kv_heads, 0);  // [heads, kv, D]
  };
  Tensor query = rows(call.query, sequence.query_start, sequence.query_length, call.num_heads);
  TORCH_CHECK(query.size(1) == call.num_heads, query.size(1), " query heads, ", call.num_heads, " were said");
  Tensor scores = at::matmul(query.to(at::kFloat).transpose(0, 1), context(call.key[0]).transpose(1, 2)) * call.scale;
  if (Tensor mask = hidden(call, sequence); mask.defined()) {
    TORCH_CHECK(!mask.all(-1).any().item<bool>(), "a query sees nothing");
    scores.masked_fill_(mask, -std::numeric_limits<float>::infinity());
  }
  Tensor result = at::matmul(at::softmax(scores, -1), context(call.value[0]));  // [heads, queries, D]
  put(rows(call.out, sequence.query_start, sequence.query_length, call.num_heads), result.transpose(0, 1));
  if (!call.lse.numel()) return;
  Tensor sums = at::logsumexp(scores, -1, true);  // [heads, queries, 1]
  if (is_ragged(call)) {
    put(call.lse.narrow(0, sequence.query_start, sequence.query_length), sums.transpose(0, 1));
  } else {
    put(call.lse[sequence.index].narrow(1, 0, sequence.query_length), sums);
  }
}

}  // namespace

void attention(const Attention& given) {
  Attention call = given;
  if (call.num_kv_heads == 0) call.num_kv_heads = call.num_heads;  // as the interface says
  TORCH_CHECK(call.key.size() == 1 && call.value.size() == 1, call.key.size(), " keys; one tensor is emulated");
  TORCH_CHECK(call.num_heads % call.num_kv_heads == 0, call.num_heads, " heads over ", call.num_kv_heads, " kv heads");
  for (auto& sequence : sequences_of(call)) {
    if (sequence.query_length) attend(call, sequence);
  }
}
