// Chains of multiply-adds: what stands for x beside each format of what it is multiplied with, weights or a cache, and the
// step that adds their product to sums. A chain has one order on every target.
#pragma once

#include "block.h"
#include "target.h"

namespace tv::TV_TARGET {

// Beside float32: x as it is, input after input.
struct Singles {
    using Element = float;  // of x in a block
    using Factor = Vec;
    static constexpr bool kFlushes = false;
    static constexpr int64_t kInputs = 1;  // of an element
    static constexpr int64_t kTurn = 1;    // elements that are taken together

    TV_INLINE static Factor factor(Element x) { return broadcast(x); }
    TV_INLINE static Factor factor_of(Vec numbers, int) { return numbers; }
    TV_INLINE static Vec add(Factor weight, Factor x, Vec sum) { return fma(weight, x, sum); }
    TV_INLINE static void take(Element* to, const Block& x) { store_block(to, x); }
};

// Beside bfloat16, and beside int8, which bfloat16 holds: x rounded to bfloat16, two inputs at a time, the second before
// the first. Words have two inputs each; factor_of is what element i of a turn is multiplied with.
#if defined(TV_TARGET_AVX512BF16)
struct Pairs {
    using Element = uint32_t;
    using Factor = Words;
    static constexpr bool kFlushes = true;
    static constexpr int64_t kInputs = 2;
    static constexpr int64_t kTurn = 1;

    TV_INLINE static Factor factor(Element x) { return broadcast_words(x); }
    TV_INLINE static Factor factor_of(Words words, int) { return words; }
    TV_INLINE static Vec add(Factor weight, Factor x, Vec sum) { return dot_words(weight, x, sum); }
    TV_INLINE static void take(Element* to, const Block& x) { store_rounded(to, x.part[0]); }
};
#else
struct Pairs {
    using Element = float;
    using Factor = Vec;
    static constexpr bool kFlushes = true;
    static constexpr int64_t kInputs = 1;
    static constexpr int64_t kTurn = 2;

    TV_INLINE static Factor factor(Element x) { return broadcast(x); }
    TV_INLINE static Factor factor_of(Words words, int i) { return i == 0 ? low_halves(words) : high_halves(words); }
    TV_INLINE static Vec add(Factor weight, Factor x, Vec sum) { return fma(weight, x, sum); }
    TV_INLINE static void take(Element* to, const Block& x) {
        TV_UNROLL for (int i = 0; i < kParts; ++i) store_rounded(to + i * kLanes, x.part[i]);
    }
};
#endif

}  // namespace tv::TV_TARGET
