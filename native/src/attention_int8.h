// A tile against keys and values in int8, by integers: queries and weights are rounded to 16 bits, and what is summed is
// exact, so that its order is free. Twice the multiplications of floats in an instruction, and no element is widened to
// 32 bits. 16 bits lose a two hundredth of what the cache lost in its 8.
#pragma once

#include "attention_tile.h"

namespace tv::TV_TARGET {

constexpr float kMost = 32767.0f;
constexpr int64_t kMaxRuns = kMaxHeadDim / kGroupInputs;

// Pairs of integers, as many as a vector has words.
TV_INLINE Words load_pairs(const int8_t* from) {
#if TV_LANES == 16
    // With a mask of everything, as in load_integers.
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return bits_as<Words>(_mm512_maskz_cvtepi8_epi16(~__mmask32{0}, bytes));
#elif defined(TV_TARGET_AVX2)
    return bits_as<Words>(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(TV_TARGET_NEON)
    return bits_as<Words>(vmovl_s8(vld1_s8(from)));
#else
    return static_cast<uint16_t>(from[0]) | static_cast<uint32_t>(from[1]) << 16;
#endif
}

// Word by word, sums + first · first + second · second of two pairs of 16 bits.
TV_INLINE Words add_products(Words sums, Words a, Words b) {
#if TV_LANES == 16
    return sums + bits_as<Words>(_mm512_madd_epi16(bits_as<__m512i>(a), bits_as<__m512i>(b)));
#elif defined(TV_TARGET_AVX2)
    return sums + bits_as<Words>(_mm256_madd_epi16(bits_as<__m256i>(a), bits_as<__m256i>(b)));
#elif defined(TV_TARGET_NEON)
    const int16x8_t x = bits_as<int16x8_t>(a), y = bits_as<int16x8_t>(b);
    const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y)), high = vmull_high_s16(x, y);
    return sums + bits_as<Words>(vpaddq_s32(low, high));
#else
    const auto half = [](Words pair, int shift) { return static_cast<int32_t>(static_cast<int16_t>(pair >> shift)); };
    return sums + static_cast<uint32_t>(half(a, 0) * half(b, 0) + half(a, 16) * half(b, 16));
#endif
}

struct IntegerBlock {
    Words part[kParts];
};

TV_INLINE IntegerBlock no_integers() {
    IntegerBlock result;
    TV_UNROLL for (int i = 0; i < kParts; ++i) result.part[i] = broadcast_words(0);
    return result;
}
TV_INLINE IntegerBlock load_pair_block(const int8_t* from) {
    IntegerBlock result;
    TV_UNROLL for (int i = 0; i < kParts; ++i) result.part[i] = load_pairs(from + 2 * i * kLanes);
    return result;
}
TV_INLINE IntegerBlock add_products(const IntegerBlock& sums, const IntegerBlock& a, Words b) {
    IntegerBlock result;
    TV_UNROLL for (int i = 0; i < kParts; ++i) result.part[i] = add_products(sums.part[i], a.part[i], b);
    return result;
}
TV_INLINE Block as_floats(const IntegerBlock& a) {
    return each_part([&](int i) {
#if TV_LANES == 1
        return static_cast<float>(static_cast<int32_t>(a.part[i]));
#else
        typedef int32_t Signed __attribute__((vector_size(4 * kLanes)));
        return __builtin_convertvector(bits_as<Signed>(a.part[i]), Vec);
#endif
    });
}

// n numbers in 16 bits, and zeros to the end of a block; what one of those is worth: the largest becomes 32767. NaN
// where a number is not finite. Where all are below 1e-33 they are 0.
TV_INLINE float round_to_16_bits(const float* x, int64_t n, uint16_t* halves) {
    const float largest = largest_size(x, n);
    const float unit = largest < __builtin_inff() ? largest / kMost : __builtin_nanf("");
    const Block inverse = broadcast_block(unit >= 0x1p-126f ? 1.0f / unit : 0.0f);
    for (int64_t i = 0; i < n; i += kBlock) {
        const Block shifted = fma(load_block(x + i, n - i), inverse, broadcast_block(kRounder));
        TV_UNROLL for (int p = 0; p < kParts; ++p) store_halves(halves + i + p * kLanes, bits_as<Words>(shifted.part[p]));
    }
    return unit;
}

// Two neighbours in one word.
TV_INLINE Words broadcast_pair(const uint16_t* halves) {
    uint32_t pair;
    __builtin_memcpy(&pair, halves, sizeof pair);
    return broadcast_words(pair);
}

template <int ROWS>
struct Queries<ROWS, int8_t> {
    uint16_t halves[ROWS * kMaxHeadDim];
    float units[ROWS * kMaxRuns];

    void load(int row, const float* from, int64_t head_dim, float scale) {
        alignas(64) float scaled[kMaxHeadDim];
        for (int64_t d = 0; d < head_dim; ++d) scaled[d] = from[d] * scale;
        for (int64_t d = 0; d < head_dim; d += kGroupInputs) {
            units[row * kMaxRuns + d / kGroupInputs] = round_to_16_bits(
                scaled + d, smaller(kGroupInputs, head_dim - d), halves + row * kMaxHeadDim + d);
        }
    }
};

// Runs of elements that share a scale are summed as integers; their sums, each times its scales, are added in order.
template <int ROWS, int COLUMNS>
TV_INLINE void score(const Queries<ROWS, int8_t>& q, const KvBlock<int8_t>* keys, const KvBlock<int8_t>* next,
                     int64_t head_dim, float* scores) {
    for (int64_t run = 0; run * kGroupInputs < head_dim; ++run) {
        const int64_t end = smaller((run + 1) * kGroupInputs, head_dim);
        IntegerBlock sums[ROWS][COLUMNS];
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = no_integers();
        }
        for (int64_t d = run * kGroupInputs; d < end; d += 2) {
            IntegerBlock pairs[COLUMNS];
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
                pairs[c] = load_pair_block(keys[c].elements + d * kBlockTokens);
                prefetch(next[c].elements + d * kBlockTokens);
            }
            TV_UNROLL for (int r = 0; r < ROWS; ++r) {
                const Words of_query = broadcast_pair(q.halves + r * kMaxHeadDim + d);
                TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = add_products(sums[r][c], pairs[c], of_query);
            }
        }
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
            const Block scale = load_block(keys[c].scales + run * kBlockTokens);
            TV_UNROLL for (int r = 0; r < ROWS; ++r) {
                float* place = scores + r * kTileTokens + c * kBlock;
                const Block unit = scale * broadcast_block(q.units[r * kMaxRuns + run]);
                const Block of_run = as_floats(sums[r][c]);
                store_block(place, run == 0 ? of_run * unit : fma(of_run, unit, load_block(place)));
            }
        }
    }
}

// The weights of the positions that each row sees, times the scales of their values, in 16 bits: what one is worth.
// Positions that a row does not see weigh nothing, whatever lies there.
template <int ROWS>
TV_INLINE void round_weights(const float* weights, const Tile<int8_t>& tile, int64_t run, const int64_t* seen,
                             uint16_t* halves, float* units) {
    for (int r = 0; r < ROWS; ++r) {
        alignas(64) float scaled[kTileTokens];
        TV_UNROLL for (int b = 0; b < kTileBlocks; ++b) {
            const Block scale = load_block(tile.values[b].scales + run * kBlockTokens);
            const Block weight = load_block(weights + r * kTileTokens + b * kBlock) * scale;
            store_block(scaled + b * kBlock, first_lanes(weight, between(0, seen[r] - b * kBlock, kBlock), 0.0f));
        }
        units[r] = round_to_16_bits(scaled, kTileTokens, halves + r * kTileTokens);
    }
}

// COLUMNS · 16 elements of the values of a tile, weighted. The last of a head may be fewer, taken block by block.
template <int ROWS, int COLUMNS, bool IS_REST>
TV_INLINE void accumulate(float* sums_of_row, int64_t row_floats, const float* shrink, const uint16_t* weights,
                          const float* units, const Tile<int8_t>& tile, const Tile<int8_t>& next, int64_t head_dim,
                          int64_t d, const int64_t* seen) {
    IntegerBlock sums[ROWS][COLUMNS];
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = no_integers();
    }
    for (int64_t t = 0; t < seen[ROWS - 1]; t += 2) {
        const int64_t place = t % kBlockTokens * head_dim + 2 * d;
        const int8_t* from = tile.values[t / kBlockTokens].elements + place;
        int8_t padded[2 * kBlock] = {};
        if constexpr (IS_REST) {
            for (int64_t i = 0; i < 2 * smaller(kBlock, head_dim - d); ++i) padded[i] = from[i];
            from = padded;
        }
        IntegerBlock pairs[COLUMNS];
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) pairs[c] = load_pair_block(from + 2 * c * kBlock);
        const int8_t* from_next = next.values[t / kBlockTokens].elements + place;
        TV_UNROLL for (int c = 0; c < COLUMNS; c += 2) prefetch(from_next + 2 * c * kBlock);
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            const Words weight = broadcast_pair(weights + r * kTileTokens + t);
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = add_products(sums[r][c], pairs[c], weight);
        }
    }
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        if (seen[r] == 0) continue;  // not even a zero's sign changes
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
            float* place = sums_of_row + r * row_floats + d + c * kBlock;
            const Block before = load_block(place) * broadcast_block(shrink[r]);
            store_block(place, fma(as_floats(sums[r][c]), broadcast_block(units[r]), before));
        }
    }
}

template <int ROWS>
static void accumulate_tile(float* sums_of_row, int64_t row_floats, const float* shrink, const float* weights,
                            const Tile<int8_t>& tile, const Tile<int8_t>& next, int64_t head_dim, const int64_t* seen) {
    constexpr int columns = columns_for(ROWS);
    uint16_t halves[ROWS * kTileTokens];
    float units[ROWS];
    const auto accumulate_at = [&](auto num_columns, auto is_rest, int64_t d) {
        accumulate<ROWS, decltype(num_columns)::value, decltype(is_rest)::value>(
            sums_of_row, row_floats, shrink, halves, units, tile, next, head_dim, d, seen);
    };
    for (int64_t d = 0; d < head_dim;) {
        round_weights<ROWS>(weights, tile, d / kGroupInputs, seen, halves, units);
        const int64_t end = smaller(d + kGroupInputs, head_dim);
        for (; d + columns * kBlock <= end; d += columns * kBlock) accumulate_at(Number<columns>(), Number<0>(), d);
        for (; d + kBlock <= end; d += kBlock) accumulate_at(Number<1>(), Number<0>(), d);
        for (; d < end; d += kBlock) accumulate_at(Number<1>(), Number<1>(), d);
    }
}

}  // namespace tv::TV_TARGET
