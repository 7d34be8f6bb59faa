// Attention over the KV cache. A row (a head of a token) goes through its positions in spans of 512 from position 0,
// and through a span in tiles of 64 with a running softmax; the results of spans are merged in their order. Who
// computes which span, and in whose company, is left to the division of the work: it cannot change a bit.
// A slot may hold anything, NaN included, at positions after the row's own: those are left out, not multiplied by zero.
#include "attention_int8.h"
#include "attention_partial.h"
#include "attention_tile.h"
#include "block.h"
#include "kv_cache.h"
#include "target.h"

namespace tv::TV_TARGET {

constexpr int64_t kSpanTokens = 512;
static_assert(kSpanTokens % kTileTokens == 0);

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
    // How many positions the row sees; ascending in i, since rows are in token order.
    int64_t length_of(int64_t token, int64_t i) const { return positions[token + i / group] + 1; }
    // Blocks past the one of `last` are that one again.
    Tile<C> tile_at(int64_t first, int64_t last) const {
        Tile<C> tile;
        for (int b = 0; b < kTileBlocks; ++b) {
            const int64_t position = smaller(first + b * kBlockTokens, last - last % kBlockTokens);
            tile.keys[b] = stream.keys(slots, kv_head, position);
            tile.values[b] = stream.values(slots, kv_head, position);
        }
        return tile;
    }
};

// What a row carries from tile to tile beside its output: the largest score, and the sum of weights by lane.
struct Running {
    float max;
    Block sum;
};

// The largest of `before` and the first n scores of a tile; the others become -inf, whatever they were.
TV_INLINE float largest_score(float before, int64_t n, float* scores) {
    const float lowest = -__builtin_inff();
    Block largest = broadcast_block(lowest);
    TV_UNROLL for (int b = 0; b < kTileBlocks; ++b) {
        const int64_t counted = between(0, n - b * kBlock, kBlock);
        Block block = load_block(scores + b * kBlock);
        if (counted < kBlock) store_block(scores + b * kBlock, block = first_lanes(block, counted, lowest));
        largest = larger(largest, block);
    }
    const float found = max_of(largest);
    return before > found ? before : found;
}

// exp(score - max) in place; their sum, by lane. A position that does not count has the score -inf, the weight 0.
TV_INLINE Block weigh(float max, float* scores) {
    Block sums[2] = {broadcast_block(0.0f), broadcast_block(0.0f)};
    TV_UNROLL for (int b = 0; b < kTileBlocks; ++b) {
        const Block weight = exp_of_negative(load_block(scores + b * kBlock) - broadcast_block(max));
        store_block(scores + b * kBlock, weight);
        sums[b % 2] = sums[b % 2] + weight;
    }
    return sums[0] + sums[1];
}

// The partials of ROWS rows over the positions from `begin` to `end`, at most a span and no further than the last row
// sees. partials: row after row.
template <int ROWS, class C>
static void attend_span(const Attention<C>& call, const Queries<ROWS, C>& q, const int64_t* length, int64_t begin,
                        int64_t end, float* partials) {
    const int64_t head_dim = call.stream.head_dim;
    const int64_t row_floats = Partial::floats(head_dim);
    Running running[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        running[r] = {-__builtin_inff(), broadcast_block(0.0f)};
        Partial{partials + r * row_floats}.clear(head_dim);
    }
    Tile<C> next = call.tile_at(begin, length[ROWS - 1] - 1);
    for (int64_t first = begin; first < end; first += kTileTokens) {
        const int num_blocks = static_cast<int>(ceil_div(smaller(kTileTokens, end - first), kBlockTokens));
        const Tile<C> tile = next;
        next = call.tile_at(first + kTileTokens, length[ROWS - 1] - 1);
        alignas(64) float weights[ROWS * kTileTokens];
        constexpr int columns = columns_for(ROWS);
        int b = 0;
        for (; b + columns <= num_blocks; b += columns) {
            score<ROWS, columns>(q, tile.keys + b, next.keys + b, head_dim, weights + b * kBlock);
        }
        for (; b < num_blocks; ++b) score<ROWS, 1>(q, tile.keys + b, next.keys + b, head_dim, weights + b * kBlock);

        int64_t seen[ROWS];  // positions of this tile that the row sees
        alignas(64) float shrink[kBlock] = {};
        for (int r = 0; r < ROWS; ++r) {
            seen[r] = between(0, length[r] - first, kTileTokens);
            if (seen[r] == 0) continue;
            const float max = largest_score(running[r].max, seen[r], weights + r * kTileTokens);
            shrink[r] = running[r].max - max;
            running[r].max = max;
        }
        Block sum[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            sum[r] = seen[r] > 0 ? weigh(running[r].max, weights + r * kTileTokens) : broadcast_block(0.0f);
        }
        store_block(shrink, exp(load_block(shrink)));  // of a row that sees nothing here: e^0
        for (int r = 0; r < ROWS; ++r) running[r].sum = fma(running[r].sum, broadcast_block(shrink[r]), sum[r]);
        accumulate_tile<ROWS>(Partial{partials}.values(), row_floats, shrink, weights, tile, next, head_dim, seen);
    }
    for (int r = 0; r < ROWS; ++r) {
        const Partial partial = {partials + r * row_floats};
        partial.max() = running[r].max;
        partial.sum() = sum_of(running[r].sum);
    }
}

template <class C>
static void write_row(const Partial& total, int64_t head_dim, float* out) {
    const Block sum = broadcast_block(total.sum());
    alignas(64) float result[kMaxHeadDim];
    for (int64_t d = 0; d < head_dim; d += kBlock) store_block(result + d, load_block(total.values() + d) / sum);
    for (int64_t i = 0; i < head_dim; ++i) out[element_at<C>(i, head_dim)] = result[i];
}

template <int ROWS, class C>
static void load_rows(const Attention<C>& call, int64_t token, int64_t first, Queries<ROWS, C>& q, int64_t* length) {
    for (int r = 0; r < ROWS; ++r) {
        q.load(r, call.q_of(token, first + r), call.stream.head_dim, call.scale);
        length[r] = call.length_of(token, first + r);
    }
}

// A tile of rows by one thread: span after span, merged as they come.
template <int ROWS, class C>
static void attend_rows(const Attention<C>& call, int64_t token, int64_t first) {
    const int64_t head_dim = call.stream.head_dim;
    const int64_t row_floats = Partial::floats(head_dim);
    Queries<ROWS, C> q;
    alignas(64) float partials[ROWS * kMaxPartialFloats];
    alignas(64) float totals[ROWS * kMaxPartialFloats];
    int64_t length[ROWS];
    load_rows<ROWS>(call, token, first, q, length);
    for (int r = 0; r < ROWS; ++r) Partial{totals + r * row_floats}.clear(head_dim);
    for (int64_t begin = 0; begin < length[ROWS - 1]; begin += kSpanTokens) {
        attend_span<ROWS>(call, q, length, begin, smaller(begin + kSpanTokens, length[ROWS - 1]), partials);
        for (int r = 0; r < ROWS; ++r) {
            if (begin >= length[r]) continue;
            merge({totals + r * row_floats}, {partials + r * row_floats}, head_dim);
        }
    }
    for (int r = 0; r < ROWS; ++r) write_row<C>({totals + r * row_floats}, head_dim, call.out_of(token, first + r));
}

// Some spans of a tile of rows, each span's partials to `scratch` [spans, num_rows, floats of a partial].
template <int ROWS, class C>
static void attend_spans(const Attention<C>& call, int64_t token, int64_t first, int64_t begin, int64_t end,
                         float* scratch, int64_t span_floats) {
    Queries<ROWS, C> q;
    int64_t length[ROWS];
    load_rows<ROWS>(call, token, first, q, length);
    for (int64_t span = begin; span < end; ++span) {
        const int64_t span_end = smaller((span + 1) * kSpanTokens, length[ROWS - 1]);
        float* partials = scratch + span * span_floats + first * Partial::floats(call.stream.head_dim);
        attend_span<ROWS>(call, q, length, span * kSpanTokens, span_end, partials);
    }
}

template <class C>
static void merge_spans(const Attention<C>& call, int64_t token, int64_t num_rows, float* scratch,
                        int64_t span_floats) {
    const int64_t head_dim = call.stream.head_dim;
    alignas(64) float memory[kMaxPartialFloats];
    const Partial total = {memory};
    for (int64_t i = 0; i < num_rows; ++i) {
        total.clear(head_dim);
        const int64_t num_spans = ceil_div(call.length_of(token, i), kSpanTokens);
        for (int64_t span = 0; span < num_spans; ++span) {
            merge(total, {scratch + span * span_floats + i * Partial::floats(head_dim)}, head_dim);
        }
        write_row<C>(total, head_dim, call.out_of(token, i));
    }
}

// `run` with the number of rows as a constant.
template <int ROWS, class Run>
static void with_rows(int64_t rows, const Run& run) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return with_rows<ROWS - 1>(rows, run);
    }
    run(Number<ROWS>());
}

// How a step's work is cut into items. A tile of rows that sees more than a span may be several items, so that a
// sequence or two of great length keep every thread busy; the one that ends last merges what all of them made.
struct Division {
    static constexpr int64_t kManyItems = kScratchCounters;

    int64_t num_wholes;  // tiles at most: one for each token and kv head
    int64_t num_spans = 1;  // that the longest row sees
    int64_t parts = 1;   // items of a tile

    Division(const Call& call, const Step& step) : num_wholes(step.num_rows * call.integers[1]) {
        if (2 * num_wholes > kManyItems) return;
        const int32_t* positions = vector_of<const int32_t>(call.operands[3]);
        int32_t last = 0;
        for (int64_t i = 0; i < step.num_rows; ++i) last = positions[i] > last ? positions[i] : last;
        num_spans = ceil_div(last + 1, kSpanTokens);
        const int64_t heads = step.num_rows * call.integers[0];
        const bool fits = heads * num_spans * Partial::floats(call.integers[2]) <= kScratchFloats;
        if (fits) parts = smaller(kManyItems / num_wholes, num_spans);
    }
};

// q, cache, out, positions, starts, slots · num_heads, num_kv_heads, head_dim, slot_tokens · scale
template <class C>
static void attend(const Call& call, const Step& step, int64_t item) {
    const Operand* o = call.operands;
    const int64_t num_kv_heads = call.integers[1];
    const int64_t group = call.integers[0] / num_kv_heads;
    const int64_t tile_tokens = group < kTileRows ? kTileRows / group : 1;
    const int32_t* starts = vector_of<const int32_t>(o[4]);
    const Division division(call, step);
    const int64_t whole = item / division.parts;
    // From the last token, which sees the most, to the first: the longest items should not be begun last.
    const int64_t token = step.num_rows - 1 - whole / num_kv_heads;
    const int64_t sequence = sequence_of(starts, step.num_sequences, token);
    if ((token - starts[sequence]) % tile_tokens != 0) return;  // in a tile that begins at an earlier token
    const int64_t num_rows = smaller(tile_tokens, starts[sequence + 1] - token) * group;
    const Attention<C> attention = {
        {o[1].address, o[1].stride, num_kv_heads, call.integers[2], call.integers[3]},
        o,
        o + 2,
        vector_of<const int32_t>(o[3]),
        row_of<const int32_t>(o[5], sequence),
        whole % num_kv_heads,
        group,
        call.number};
    if (division.parts == 1) {
        for (int64_t first = 0; first < num_rows; first += kTileRows) {
            with_rows<kTileRows>(smaller(kTileRows, num_rows - first), [&](auto rows) {
                attend_rows<decltype(rows)::value>(attention, token, first);
            });
        }
        return;
    }
    const int64_t num_spans = ceil_div(attention.length_of(token, num_rows - 1), kSpanTokens);
    const int64_t part = item % division.parts;
    const int64_t row_floats = Partial::floats(attention.stream.head_dim);
    // A tile takes the place of all its rows: that of its tokens, by kv head.
    const int64_t first_row = token * num_kv_heads * group + attention.kv_head * num_rows;
    float* scratch = step.scratch->floats + first_row * division.num_spans * row_floats;
    for (int64_t first = 0; first < num_rows; first += kTileRows) {
        with_rows<kTileRows>(smaller(kTileRows, num_rows - first), [&](auto rows) {
            attend_spans<decltype(rows)::value>(attention, token, first, part * num_spans / division.parts,
                                                (part + 1) * num_spans / division.parts, scratch,
                                                num_rows * row_floats);
        });
    }
    uint32_t* num_done = step.scratch->counters + whole;
    if (__atomic_add_fetch(num_done, 1, __ATOMIC_ACQ_REL) < division.parts) return;
    *num_done = 0;
    merge_spans(attention, token, num_rows, scratch, num_rows * row_floats);
}

static int64_t count_attention_items(const Call& call, const Step& step) {
    const Division division(call, step);
    return division.num_wholes * division.parts;
}

static void run_attention_item(const Call& call, const Step& step, int64_t item) {
    switch (call.operands[1].dtype) {
        case DType::int8: return attend<int8_t>(call, step, item);
        case DType::bfloat16: return attend<BFloat16>(call, step, item);
        default: return attend<float>(call, step, item);
    }
}

const Kernel attention = {count_attention_items, run_attention_item};

}  // namespace tv::TV_TARGET
