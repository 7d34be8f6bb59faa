// A tile: some rows (a head of a token each) against 64 positions. Their scores, and the sums of the values by weight.
// Rows share what is loaded, never arithmetic: a row's chains are its own, in one order.
#pragma once

#include "chains.h"
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

// By which chains a cache is multiplied, and a vector of its numbers, or of pairs of them. In int8 products are of
// integers, see attention_int8.h, and only the weights are as here.
template <class C>
struct Cached {
    using Chain = Singles;
    TV_INLINE static Vec load(const float* from) { return tv::TV_TARGET::load(from); }
};
template <>
struct Cached<BFloat16> {
    using Chain = Pairs;
    TV_INLINE static Words load(const BFloat16* from) { return load_words(from); }
};
template <class C>
using ChainOf = typename Cached<C>::Chain;
template <class C>
using ElementOf = typename ChainOf<C>::Element;

// Both halves of a tile's work fetch the same place of the next tile, element by element: a head's keys and values lie
// in pieces, and at each the hardware's own prefetching starts anew. Into L2, since a tile and the next together are
// more than an L1 has room for (32k positions on a Zen 4, two threads: 19 GB/s into L1, 31 into L2).

// The rows' queries, scaled, in the form in which a tile takes them.
template <int ROWS, class C>
struct Queries {
    alignas(64) ElementOf<C> elements[ROWS * kMaxHeadDim];

    void load(int row, const float* from, int64_t head_dim, float scale) {
        for (int64_t d = 0; d < head_dim; d += kBlock) {
            const Block scaled = load_block(from + d, head_dim - d) * broadcast_block(scale);
            ChainOf<C>::take(elements + row * kMaxHeadDim + d / ChainOf<C>::kInputs, scaled);
        }
    }
};

// Sums of ROWS × COLUMNS blocks, one turn further: x [ROWS, stride], beside what is at `from` for each column.
template <int ROWS, int COLUMNS, class C>
TV_INLINE void add_turn(const ElementOf<C>* x, int64_t stride, const C* const* from, Block (&sums)[ROWS][COLUMNS]) {
    using Chain = ChainOf<C>;
    decltype(Cached<C>::load(from[0])) loaded[COLUMNS][kParts];
    TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
        TV_UNROLL for (int p = 0; p < kParts; ++p) loaded[c][p] = Cached<C>::load(from[c] + p * kLanes * kPair<C>);
    }
    TV_UNROLL for (int i = Chain::kTurn - 1; i >= 0; --i) {
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            const auto of_row = Chain::factor(x[r * stride + i]);
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
                TV_UNROLL for (int p = 0; p < kParts; ++p) {
                    const auto number = Chain::factor_of(loaded[c][p], i);
                    sums[r][c].part[p] = Chain::add(number, of_row, sums[r][c].part[p]);
                }
            }
        }
    }
}

// One chain for each position of COLUMNS blocks: q · k over head_dim in order.
// scores: [ROWS, kTileTokens], from the first of these blocks on.
template <int ROWS, int COLUMNS, class C>
TV_INLINE void score(const Queries<ROWS, C>& q, const KvBlock<C>* keys, const KvBlock<C>* next, int64_t head_dim,
                     float* scores) {
    Block sums[ROWS][COLUMNS];
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = broadcast_block(0.0f);
    }
    for (int64_t d = 0; d < head_dim; d += kPair<C>) {
        const C* from[COLUMNS];
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
            from[c] = keys[c].elements + d * kBlockTokens;
            prefetch(next[c].elements + d * kBlockTokens);
        }
        add_turn<ROWS, COLUMNS>(q.elements + d / ChainOf<C>::kInputs, kMaxHeadDim, from, sums);
    }
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) store_block(scores + r * kTileTokens + c * kBlock, sums[r][c]);
    }
}

// One chain for each of COLUMNS · 16 elements: what was summed before, shrunk, then weight · value over the positions
// of the tile from `begin` to `end`, in order, whole pairs of them but for the last. A position that is not counted may
// hold anything, and so may what lies behind the last element of a head: a zero stands for it.
template <int ROWS, int COLUMNS, bool IS_REST, class C>
TV_INLINE void accumulate(float* sums_of_row, int64_t row_floats, const float* shrink, const ElementOf<C>* weights,
                          const Tile<C>& tile, const Tile<C>& next, int64_t head_dim, int64_t d, int64_t begin,
                          int64_t end) {
    Block sums[ROWS][COLUMNS];
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
            sums[r][c] = load_block(sums_of_row + r * row_floats + d + c * kBlock) * broadcast_block(shrink[r]);
        }
    }
    for (int64_t t = begin; t < end; t += kPair<C>) {
        const int64_t place = value_place<C>(d, t % kBlockTokens, head_dim);
        const C* elements = tile.values[t / kBlockTokens].elements + place;
        C padded[COLUMNS * kBlock * kPair<C>];
        if (IS_REST || t + kPair<C> > end) {
            const int64_t counted = smaller(kPair<C>, end - t);
            const int64_t width = IS_REST ? head_dim - d : COLUMNS * kBlock;
            for (int64_t i = 0; i < COLUMNS * kBlock * kPair<C>; ++i) {
                padded[i] = i / kPair<C> < width && i % kPair<C> < counted ? elements[i] : C{};
            }
            elements = padded;
        }
        const C* from_next = next.values[t / kBlockTokens].elements + place;
        const C* from[COLUMNS];
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
            from[c] = elements + c * kBlock * kPair<C>;
            prefetch(from_next + c * kBlock * kPair<C>);
        }
        add_turn<ROWS, COLUMNS>(weights + t / ChainOf<C>::kInputs, kTileTokens, from, sums);
    }
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
            store_block(sums_of_row + r * row_floats + d + c * kBlock, sums[r][c]);
        }
    }
}

template <int ROWS, class C>
static void accumulate_all(float* sums_of_row, int64_t row_floats, const float* shrink, const ElementOf<C>* weights,
                           const Tile<C>& tile, const Tile<C>& next, int64_t head_dim, int64_t begin, int64_t end) {
    constexpr int columns = columns_for(ROWS);
    const auto accumulate_at = [&](auto num_columns, auto is_rest, int64_t d) {
        accumulate<ROWS, decltype(num_columns)::value, decltype(is_rest)::value>(
            sums_of_row, row_floats, shrink, weights, tile, next, head_dim, d, begin, end);
    };
    int64_t d = 0;
    for (; d + columns * kBlock <= head_dim; d += columns * kBlock) accumulate_at(Number<columns>(), Number<0>(), d);
    for (; d + kBlock <= head_dim; d += kBlock) accumulate_at(Number<1>(), Number<0>(), d);
    for (; d < head_dim; d += kBlock) accumulate_at(Number<1>(), Number<1>(), d);
}

// What ROWS rows make of the values of a tile, each of the positions that it sees: ascending, from row to row. They go
// together through those that all see, whole pairs of them where they do not see the same.
template <int ROWS, class C>
static void accumulate_tile(float* sums_of_row, int64_t row_floats, const float* shrink, const ElementOf<C>* weights,
                            const Tile<C>& tile, const Tile<C>& next, int64_t head_dim, const int64_t* seen) {
    const int64_t together = seen[0] == seen[ROWS - 1] ? seen[0] : seen[0] - seen[0] % kPair<C>;
    accumulate_all<ROWS>(sums_of_row, row_floats, shrink, weights, tile, next, head_dim, 0, together);
    const float one = 1.0f;
    for (int r = 0; r < ROWS; ++r) {
        if (seen[r] == together) continue;
        accumulate_all<1>(sums_of_row + r * row_floats, row_floats, &one, weights + r * kTileTokens, tile, next,
                          head_dim, together, seen[r]);
    }
}

}  // namespace tv::TV_TARGET
