// A tile of rows (a head of a token each) through its positions: in spans of 512 from position 0, and through a span in
// tiles of 64 with a running softmax; the results of spans are merged in their order. In how many goes, and by whom, is
// left to the caller: it cannot change a bit. So it may begin on blocks that are here while those behind them are coming.
// A slot may hold anything, NaN included, at positions after the row's own: those are left out, not multiplied by zero.
#pragma once

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
    const Coming* coming;  // to the sequence's slots; null where all is in them
    int64_t number;        // of the stream, among those that come
    const Tile<C>* following = nullptr;  // what this thread likely reads next, after these rows; null: nobody can tell

    // Row i of the tile that starts at `token`: its heads of this group first, then the next token's.
    const float* q_of(int64_t token, int64_t i) const { return row_of<const float>(*q, token + i / group) + head(i); }
    float* out_of(int64_t token, int64_t i) const { return row_of<float>(*out, token + i / group) + head(i); }
    int64_t head(int64_t i) const { return (kv_head * group + i % group) * stream.head_dim; }
    // How many positions the row sees; ascending in i, since rows are in token order.
    int64_t length_of(int64_t token, int64_t i) const { return positions[token + i / group] + 1; }
    // Waits until the positions before `end` are in their slots; false when they never will be.
    bool is_here(int64_t end) const {
        if (coming == nullptr) return true;
        const int64_t num_slots = ceil_div(end, stream.slot_tokens) - coming->first;
        return wait_for(*coming, number, between(0, num_slots, coming->num_slots));
    }
    // The blocks past the one of `last` are only fetched: those of what follows, or else that one again.
    Tile<C> tile_at(int64_t first, int64_t last) const {
        const int64_t last_block = last / kBlockTokens;
        Tile<C> tile;
        for (int b = 0; b < kTileBlocks; ++b) {
            const int64_t block = first / kBlockTokens + b;
            if (block > last_block && following != nullptr) {
                const int64_t past = smaller(block - last_block, kTileBlocks) - 1;
                tile.keys[b] = following->keys[past];
                tile.values[b] = following->values[past];
            } else {
                const int64_t position = smaller(block, last_block) * kBlockTokens;
                tile.keys[b] = stream.keys(slots, kv_head, position);
                tile.values[b] = stream.values(slots, kv_head, position);
            }
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

// weights: exp(score - max), as a chain takes them; their sum, by lane. A position that does not count has the score -inf,
// the weight 0.
template <class Chain>
TV_INLINE Block weigh(float max, const float* scores, typename Chain::Element* weights) {
    Block sums[2] = {broadcast_block(0.0f), broadcast_block(0.0f)};
    TV_UNROLL for (int b = 0; b < kTileBlocks; ++b) {
        const Block weight = exp_of_negative(load_block(scores + b * kBlock) - broadcast_block(max));
        Chain::take(weights + b * kBlock / Chain::kInputs, weight);
        sums[b % 2] = sums[b % 2] + weight;
    }
    return sums[0] + sums[1];
}

// The partials of ROWS rows become those of the positions up to `end`, from `begin` on, the first of a tile: of a span
// at most, and no further than the last row sees. partials: row after row. Where blocks that are still coming will not
// come it ends early: what the step makes of the sequence is thrown away.
template <int ROWS, class C>
static void attend_span(const Attention<C>& call, const Queries<ROWS, C>& q, const int64_t* length, int64_t begin,
                        int64_t end, float* partials) {
    const int64_t head_dim = call.stream.head_dim;
    const int64_t row_floats = Partial::floats(head_dim);
    Running running[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        const Partial partial = {partials + r * row_floats};
        if (begin % kSpanTokens == 0) partial.clear(head_dim);
        running[r] = {partial.max(), load_block(partial.lanes())};
    }
    Tile<C> next = call.tile_at(begin, length[ROWS - 1] - 1);
    for (int64_t first = begin; first < end; first += kTileTokens) {
        if (!call.is_here(smaller(first + kTileTokens, end))) return;
        const int num_blocks = static_cast<int>(ceil_div(smaller(kTileTokens, end - first), kBlockTokens));
        const Tile<C> tile = next;
        next = call.tile_at(first + kTileTokens, length[ROWS - 1] - 1);
        alignas(64) float scores[ROWS * kTileTokens];
        alignas(64) ElementOf<C> weights[ROWS * kTileTokens];
        constexpr int columns = columns_for(ROWS);
        int b = 0;
        for (; b + columns <= num_blocks; b += columns) {
            score<ROWS, columns>(q, tile.keys + b, next.keys + b, head_dim, scores + b * kBlock);
        }
        for (; b < num_blocks; ++b) score<ROWS, 1>(q, tile.keys + b, next.keys + b, head_dim, scores + b * kBlock);

        int64_t seen[ROWS];  // positions of this tile that the row sees
        alignas(64) float shrink[kBlock] = {};
        for (int r = 0; r < ROWS; ++r) {
            seen[r] = between(0, length[r] - first, kTileTokens);
            if (seen[r] == 0) continue;
            const float max = largest_score(running[r].max, seen[r], scores + r * kTileTokens);
            shrink[r] = running[r].max - max;
            running[r].max = max;
        }
        Block sum[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            ElementOf<C>* of_row = weights + r * kTileTokens;
            sum[r] = broadcast_block(0.0f);
            if (seen[r] > 0) {
                sum[r] = weigh<ChainOf<C>>(running[r].max, scores + r * kTileTokens, of_row);
            } else {
                for (int64_t t = 0; t < kTileTokens; ++t) of_row[t] = 0;
            }
        }
        store_block(shrink, exp(load_block(shrink)));  // of a row that sees nothing here: e^0
        for (int r = 0; r < ROWS; ++r) running[r].sum = fma(running[r].sum, broadcast_block(shrink[r]), sum[r]);
        accumulate_tile<ROWS>(Partial{partials}.values(), row_floats, shrink, weights, tile, next, head_dim, seen);
    }
    for (int r = 0; r < ROWS; ++r) {
        const Partial partial = {partials + r * row_floats};
        partial.max() = running[r].max;
        partial.sum() = sum_of(running[r].sum);
        store_block(partial.lanes(), running[r].sum);
    }
}

// The totals of the spans before the one from `begin` on become those of this one too, of each row that sees it.
template <int ROWS>
static void merge_span(float* totals, float* partials, const int64_t* length, int64_t begin, int64_t head_dim) {
    const int64_t row_floats = Partial::floats(head_dim);
    for (int r = 0; r < ROWS; ++r) {
        if (begin < length[r]) merge({totals + r * row_floats}, {partials + r * row_floats}, head_dim);
    }
}

static void write_row(const Partial& total, int64_t head_dim, float* out) {
    const Block share = broadcast_block(1.0f / total.sum());
    for (int64_t d = 0; d < head_dim; d += kBlock) {
        store_block(out + d, load_block(total.values() + d) * share, head_dim - d);
    }
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
    attend_span<ROWS>(call, q, length, 0, smaller(kSpanTokens, length[ROWS - 1]), totals);
    for (int64_t begin = kSpanTokens; begin < length[ROWS - 1]; begin += kSpanTokens) {
        attend_span<ROWS>(call, q, length, begin, smaller(begin + kSpanTokens, length[ROWS - 1]), partials);
        merge_span<ROWS>(totals, partials, length, begin, head_dim);
    }
    for (int r = 0; r < ROWS; ++r) write_row({totals + r * row_floats}, head_dim, call.out_of(token, first + r));
}

// The same in several goes: from `begin` on, the first of a tile, to `end` within the span, or to what the rows see.
// state: the rows' totals, and their partials of the spans after the first, as the go before left them.
template <int ROWS, class C>
static void attend_further(const Attention<C>& call, int64_t token, int64_t first, int64_t begin, int64_t end,
                           float* state) {
    const int64_t seen = call.length_of(token, first + ROWS - 1);
    if (begin >= seen) return;
    const int64_t head_dim = call.stream.head_dim;
    const int64_t row_floats = Partial::floats(head_dim);
    const bool is_first_span = begin < kSpanTokens;
    float* partials = is_first_span ? state : state + ROWS * row_floats;
    Queries<ROWS, C> q;
    int64_t length[ROWS];
    load_rows<ROWS>(call, token, first, q, length);
    attend_span<ROWS>(call, q, length, begin, smaller(end, seen), partials);
    if (end < seen && end % kSpanTokens != 0) return;
    if (!is_first_span) merge_span<ROWS>(state, partials, length, begin - begin % kSpanTokens, head_dim);
    if (end < seen) return;
    for (int r = 0; r < ROWS; ++r) write_row({state + r * row_floats}, head_dim, call.out_of(token, first + r));
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
    for (int64_t i = 0; i < num_rows; ++i) {
        const Partial total = {scratch + i * Partial::floats(head_dim)};
        const int64_t num_spans = ceil_div(call.length_of(token, i), kSpanTokens);
        for (int64_t span = 1; span < num_spans; ++span) {
            merge(total, {total.memory + span * span_floats}, head_dim);
        }
        write_row(total, head_dim, call.out_of(token, i));
    }
}

}  // namespace tv::TV_TARGET
