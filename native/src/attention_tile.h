// A tile: some rows (a head of a token each) against 64 positions. Their scores, and the sums of the values by weight.
// Rows share what is loaded, never arithmetic: a row's chains are its own, in one order.
#pragma once

#include "block.h"
#include "kv_cache.h"
#include "target.h"

namespace tv::TV_TARGET {

constexpr int64_t kTileTokens = 64;
constexpr int kTileBlocks = kTileTokens / kBlockTokens;
static_assert(kBlockTokens == kBlock && kTileRows <= kBlock);

// Blocks that a tile of rows works on side by side: as many chains as the register file holds, and at most a tile's.
// One row would otherwise wait for each of its multiply-adds.
constexpr int columns_for(int rows) {
    const int fit = kAccumulators / (rows * kParts);
    return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// A constant as an argument.
template <int N>
struct Number {
    static constexpr int value = N;
};

// Where the blocks of keys and values of a tile are.
template <class C>
struct Tile {
    KvBlock<C> keys[kTileBlocks], values[kTileBlocks];
};

// Both halves of a tile's work fetch the same place of the next tile, element by element: a head's keys and values lie
// in pieces, and at each the hardware's own prefetching starts anew. Into L2, since a tile and the next together are
// more than an L1 has room for (32k positions on a Zen 4, two threads: 19 GB/s into L1, 31 into L2).
// Of bfloat16 both read words, two elements with each: that is half the work of widening them one by one.

// Elements d and d + 1 of sixteen keys.
TV_INLINE void load_keys(const float* from, Block& first, Block& second) {
    first = load_block(from);
    second = load_block(from + kBlock);
}
TV_INLINE void load_keys(const BFloat16* from, Block& first, Block& second) {
    TV_UNROLL for (int i = 0; i < kParts; ++i) {
        const Words pairs = load_words(from + 2 * i * kLanes);
        first.part[i] = low_halves(pairs);
        second.part[i] = high_halves(pairs);
    }
}

// COLUMNS · 16 elements of a value: of bfloat16 in the order of the words' halves, see element_at.
template <int COLUMNS>
TV_INLINE void load_values(const float* from, Block* values) {
    TV_UNROLL for (int c = 0; c < COLUMNS; ++c) values[c] = load_block(from + c * kBlock);
}
template <int COLUMNS>
TV_INLINE void load_values(const BFloat16* from, Block* values) {
    static_assert(COLUMNS * kParts % 2 == 0);
    TV_UNROLL for (int v = 0; v < COLUMNS * kParts; v += 2) {
        const Words pairs = load_words(from + v * kLanes);
        values[v / kParts].part[v % kParts] = low_halves(pairs);
        values[(v + 1) / kParts].part[(v + 1) % kParts] = high_halves(pairs);
    }
}

// Elements that load_values takes at least; what is left of a head after them is loaded in its own order.
constexpr int64_t kRun = larger(2 * kLanes, kBlock);

// Which element of a value stands at `place` of a partial.
template <class C>
TV_INLINE int64_t element_at(int64_t place, int64_t head_dim) {
    if (sizeof(C) != sizeof(BFloat16) || place >= head_dim - head_dim % kRun) return place;
    const int64_t lane = place % (2 * kLanes);
    return place - lane + (lane < kLanes ? 2 * lane : 2 * (lane - kLanes) + 1);
}

// The rows' queries, scaled, in the form in which a tile takes them.
template <int ROWS, class C>
struct Queries {
    alignas(64) float elements[ROWS * kMaxHeadDim];

    void load(int row, const float* from, int64_t head_dim, float scale) {
        for (int64_t d = 0; d < head_dim; ++d) elements[row * kMaxHeadDim + d] = from[d] * scale;
    }
};

// One chain for each position of COLUMNS blocks: q · k over head_dim in order.
// scores: [ROWS, kTileTokens], from the first of these blocks on.
template <int ROWS, int COLUMNS, class C>
TV_INLINE void score(const Queries<ROWS, C>& q, const KvBlock<C>* keys, const KvBlock<C>* next, int64_t head_dim,
                     float* scores) {
    Block sums[ROWS][COLUMNS];
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = broadcast_block(0.0f);
    }
    for (int64_t d = 0; d < head_dim; d += 2) {
        Block first[COLUMNS], second[COLUMNS];
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
            load_keys(keys[c].elements + d * kBlockTokens, first[c], second[c]);
            prefetch(next[c].elements + d * kBlockTokens);
        }
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            const Block element = broadcast_block(q.elements[r * kMaxHeadDim + d]);
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = fma(first[c], element, sums[r][c]);
        }
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            const Block element = broadcast_block(q.elements[r * kMaxHeadDim + d + 1]);
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = fma(second[c], element, sums[r][c]);
        }
    }
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) store_block(scores + r * kTileTokens + c * kBlock, sums[r][c]);
    }
}

// One chain for each of COLUMNS · 16 elements: what was summed before, shrunk, then weight · value over the positions
// of the tile from `begin` to `end`, in order. The rest of a head, less than kRun, is taken block by block.
template <int ROWS, int COLUMNS, bool IS_REST, class C>
TV_INLINE void accumulate(float* sums_of_row, int64_t row_floats, const float* shrink, const float* weights,
                          const Tile<C>& tile, const Tile<C>& next, int64_t head_dim, int64_t d, int64_t begin,
                          int64_t end) {
    Block sums[ROWS][COLUMNS];
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
            sums[r][c] = load_block(sums_of_row + r * row_floats + d + c * kBlock) * broadcast_block(shrink[r]);
        }
    }
    for (int64_t t = begin; t < end; ++t) {
        const int64_t place = t % kBlockTokens * head_dim + d;
        const C* from = tile.values[t / kBlockTokens].elements + place;
        Block value[COLUMNS];
        if constexpr (IS_REST) {
            value[0] = load_block(from, head_dim - d);
        } else {
            load_values<COLUMNS>(from, value);
        }
        const C* from_next = next.values[t / kBlockTokens].elements + place;
        TV_UNROLL for (int c = 0; c < COLUMNS; c += 2) prefetch(from_next + c * kBlock);
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            const Block weight = broadcast_block(weights[r * kTileTokens + t]);
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = fma(value[c], weight, sums[r][c]);
        }
    }
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
            store_block(sums_of_row + r * row_floats + d + c * kBlock, sums[r][c]);
        }
    }
}

template <int ROWS, class C>
static void accumulate_all(float* sums_of_row, int64_t row_floats, const float* shrink, const float* weights,
                           const Tile<C>& tile, const Tile<C>& next, int64_t head_dim, int64_t begin, int64_t end) {
    constexpr int run = kRun / kBlock;
    constexpr int columns = columns_for(ROWS);
    static_assert(columns % run == 0);
    const auto accumulate_at = [&](auto num_columns, auto is_rest, int64_t d) {
        accumulate<ROWS, decltype(num_columns)::value, decltype(is_rest)::value>(
            sums_of_row, row_floats, shrink, weights, tile, next, head_dim, d, begin, end);
    };
    int64_t d = 0;
    for (; d + columns * kBlock <= head_dim; d += columns * kBlock) accumulate_at(Number<columns>(), Number<0>(), d);
    for (; d + kRun <= head_dim; d += kRun) accumulate_at(Number<run>(), Number<0>(), d);
    for (; d < head_dim; d += kBlock) accumulate_at(Number<1>(), Number<1>(), d);
}

// What ROWS rows make of the values of a tile, each of the positions that it sees: ascending, from row to row.
template <int ROWS, class C>
static void accumulate_tile(float* sums_of_row, int64_t row_floats, const float* shrink, const float* weights,
                            const Tile<C>& tile, const Tile<C>& next, int64_t head_dim, const int64_t* seen) {
    accumulate_all<ROWS>(sums_of_row, row_floats, shrink, weights, tile, next, head_dim, 0, seen[0]);
    const float one = 1.0f;
    for (int r = 1; r < ROWS; ++r) {
        if (seen[r] == seen[0]) continue;
        accumulate_all<1>(sums_of_row + r * row_floats, row_floats, &one, weights + r * kTileTokens, tile, next,
                          head_dim, seen[0], seen[r]);
    }
}

}  // namespace tv::TV_TARGET
