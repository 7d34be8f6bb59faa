// Blockwise attention over the KV cache with a running softmax. A row (a head of a token) goes through the blocks of
// sixteen positions in order from 0; what it shares with other rows is loads, never arithmetic. A slot may hold
// anything, NaN included, at positions after the row's own: those are left out, not multiplied by zero.
#include "block.h"
#include "kv_cache.h"
#include "target.h"

namespace tv::TV_TARGET {

template <class C>
struct Attention {
    KvStream<C> stream;
    const Operand *q, *out;
    const int32_t *positions, *slots;
    int64_t kv_head, group;  // group: query heads per kv head
    float scale;

    // Row i of the tile that starts at `token`: its heads of this group first, then the next token's.
    const float* q_of(int64_t token, int64_t i) const { return row_of<const float>(*q, token + i / group) + head(i); }
    float* out_of(int64_t token, int64_t i) const { return row_of<float>(*out, token + i / group) + head(i); }
    int64_t head(int64_t i) const { return (kv_head * group + i % group) * stream.head_dim; }
};

// One chain per position of the block: q · k over head_dim in order.
template <int ROWS, class C>
TV_INLINE void score(const float* const (&q)[ROWS], const C* keys, int64_t head_dim, Block (&scores)[ROWS]) {
    Block sums[ROWS];
    TV_UNROLL for (int r = 0; r < ROWS; ++r) sums[r] = broadcast_block(0.0f);
    for (int64_t d = 0; d < head_dim; ++d) {
        const Block key = load_block(keys + d * kBlockTokens);
        TV_UNROLL for (int r = 0; r < ROWS; ++r) sums[r] = fma(key, broadcast_block(q[r][d]), sums[r]);
    }
    TV_UNROLL for (int r = 0; r < ROWS; ++r) scores[r] = sums[r];
}

// One chain per element of the output: weight · value over the positions from `begin` to `end`, in order.
template <int ROWS, class C>
TV_INLINE void accumulate(float* const* out, const float (*weights)[kBlockTokens], const C* values, int64_t head_dim,
                          int64_t begin, int64_t end) {
    for (int64_t d = 0; d < head_dim; d += kBlock) {
        const int64_t n = head_dim - d;
        Block sums[ROWS];
        TV_UNROLL for (int r = 0; r < ROWS; ++r) sums[r] = load_block(out[r] + d, n);
        for (int64_t t = begin; t < end; ++t) {
            const Block value = load_block(values + t * head_dim + d, n);
            TV_UNROLL for (int r = 0; r < ROWS; ++r) sums[r] = fma(value, broadcast_block(weights[r][t]), sums[r]);
        }
        TV_UNROLL for (int r = 0; r < ROWS; ++r) store_block(out[r] + d, sums[r], n);
    }
}

TV_INLINE void multiply(float* out, int64_t head_dim, float factor) {
    for (int64_t d = 0; d < head_dim; d += kBlock) {
        store_block(out + d, load_block(out + d, head_dim - d) * broadcast_block(factor), head_dim - d);
    }
}

// What a row carries from block to block, beside its output: the largest score, and the sum of weights by lane.
struct Running {
    float max;
    Block sum;
};

// Scores of a block, of which the first n count, to softmax weights; what was summed before shrinks to the new maximum.
TV_INLINE void weigh(Running& running, const Block& scores, int64_t n, float scale, float* out, int64_t head_dim,
                     float* weights) {
    const float lowest = -__builtin_inff();
    const Block counted = first_lanes(scores * broadcast_block(scale), n, lowest);
    const float block_max = max_of(counted);
    const float max = running.max > block_max ? running.max : block_max;
    float shrink = 1.0f;
    if (max != running.max) {
        alignas(64) float shrinks[kBlock];
        store_block(shrinks, exp(broadcast_block(running.max - max)));
        shrink = shrinks[0];
        multiply(out, head_dim, shrink);
    }
    const Block weight = first_lanes(exp(counted - broadcast_block(max)), n, 0.0f);
    running = {max, fma(running.sum, broadcast_block(shrink), weight)};
    store_block(weights, weight);
}

template <int ROWS, class C>
static void attend_rows(const Attention<C>& call, int64_t token, int64_t first) {
    const int64_t head_dim = call.stream.head_dim;
    const float* q[ROWS];
    float* out[ROWS];
    int64_t length[ROWS];  // positions the row sees; ascending, since rows are in token order
    Running running[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        q[r] = call.q_of(token, first + r);
        out[r] = call.out_of(token, first + r);
        length[r] = call.positions[token + (first + r) / call.group] + 1;
        running[r] = {-__builtin_inff(), broadcast_block(0.0f)};
        for (int64_t d = 0; d < head_dim; d += kBlock) store_block(out[r] + d, broadcast_block(0.0f), head_dim - d);
    }
    for (int64_t position = 0; position < length[ROWS - 1]; position += kBlockTokens) {
        const C* keys = call.stream.keys(call.slots, call.kv_head, position);
        const C* values = call.stream.values(call.slots, call.kv_head, position);
        Block scores[ROWS];
        alignas(64) float weights[ROWS][kBlockTokens];
        int64_t seen[ROWS];  // positions of this block the row sees
        score<ROWS>(q, keys, head_dim, scores);
        for (int r = 0; r < ROWS; ++r) {
            seen[r] = smaller(kBlockTokens, length[r] - position);
            if (seen[r] <= 0) continue;
            weigh(running[r], scores[r], seen[r], call.scale, out[r], head_dim, weights[r]);
        }
        const int64_t shared = seen[0] > 0 ? seen[0] : 0;
        if (shared > 0) accumulate<ROWS>(out, weights, values, head_dim, 0, shared);
        for (int r = 1; r < ROWS; ++r) {
            if (seen[r] > shared) accumulate<1>(out + r, weights + r, values, head_dim, shared, seen[r]);
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        const Block sum = broadcast_block(sum_of(running[r].sum));
        for (int64_t d = 0; d < head_dim; d += kBlock) {
            store_block(out[r] + d, load_block(out[r] + d, head_dim - d) / sum, head_dim - d);
        }
    }
}

template <int ROWS, class C>
static void attend_rows_of(int64_t rows, const Attention<C>& call, int64_t token, int64_t first) {
    if (rows == ROWS) return attend_rows<ROWS>(call, token, first);
    if constexpr (ROWS > 1) attend_rows_of<ROWS - 1>(rows, call, token, first);
}

// q, cache, out, positions, starts, slots · num_heads, num_kv_heads, head_dim, slot_tokens · scale
template <class C>
static void attend(const Call& call, const Step& step, int64_t item) {
    const Operand* o = call.operands;
    const int64_t num_kv_heads = call.integers[1];
    const int64_t group = call.integers[0] / num_kv_heads;
    const int64_t tile_tokens = group < kTileRows ? kTileRows / group : 1;
    const int32_t* starts = vector_of<const int32_t>(o[4]);
    // From the last token, which sees the most, to the first: the longest items should not be begun last.
    const int64_t token = step.num_rows - 1 - item / num_kv_heads;
    const int64_t sequence = sequence_of(starts, step.num_sequences, token);
    if ((token - starts[sequence]) % tile_tokens != 0) return;  // in a tile that begins at an earlier token
    const int64_t num_tokens = smaller(tile_tokens, starts[sequence + 1] - token);
    const Attention<C> attention = {
        {o[1].address, o[1].stride, num_kv_heads, call.integers[2], call.integers[3]},
        o,
        o + 2,
        vector_of<const int32_t>(o[3]),
        row_of<const int32_t>(o[5], sequence),
        item % num_kv_heads,
        group,
        call.number};
    const int64_t num_rows = num_tokens * group;
    for (int64_t first = 0; first < num_rows; first += kTileRows) {
        attend_rows_of<kTileRows>(smaller(kTileRows, num_rows - first), attention, token, first);
    }
}

static int64_t count_attention_items(const Call& call, const Step& step) { return step.num_rows * call.integers[1]; }

static void run_attention_item(const Call& call, const Step& step, int64_t item) {
    if (call.operands[1].dtype == DType::bfloat16) return attend<BFloat16>(call, step, item);
    attend<float>(call, step, item);
}

const Kernel attention = {count_attention_items, run_attention_item};

}  // namespace tv::TV_TARGET
