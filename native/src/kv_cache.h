// Where a position's key and value lie, as in trivet/operators/kv_layout.py. A stream inside a slot is blocks of sixteen
// tokens: those of its keys, [kv head][slot_tokens / 16], then those of its values. Keys lie in their block as
// [head_dim / pair][16 tokens][pair], so that one load holds an element of sixteen keys, or a pair of elements; values as
// [16 / pair][head_dim][pair]. In int8 a block begins with scales, [head_dim / 64][16 tokens].
#pragma once

#include "block.h"
#include "kernels.h"
#include "simd.h"
#include "target.h"

namespace tv::TV_TARGET {

// Sequence i has the tokens from starts[i] to starts[i + 1].
TV_INLINE int64_t sequence_of(const int32_t* starts, int64_t num_sequences, int64_t token) {
    int64_t low = 0;
    int64_t high = num_sequences;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        (starts[middle] <= token ? low : high) = middle;
    }
    return low;
}

// Elements of a cache are float, BFloat16 or int8_t. Only those of int8_t have scales.
template <class C>
constexpr bool kIsScaled = sizeof(C) == 1;

// Numbers that lie side by side where they are multiplied two at a time: elements of a key, tokens of a value.
template <class C>
constexpr int64_t kPair = sizeof(C) < sizeof(float) ? 2 : 1;

// Where in its block of keys element d of a token is.
template <class C>
TV_INLINE int64_t key_place(int64_t d, int64_t token) {
    return (d / kPair<C> * kBlockTokens + token) * kPair<C> + d % kPair<C>;
}

// Where in its block of values.
template <class C>
TV_INLINE int64_t value_place(int64_t d, int64_t token, int64_t head_dim) {
    return (token / kPair<C> * head_dim + d) * kPair<C> + token % kPair<C>;
}

// The largest size of n numbers; not finite where one is not: as bits, infinity and NaN are larger than all numbers.
TV_INLINE float largest_size(const float* x, int64_t n) {
    const auto larger_of = [](Vec a, Vec b) { return bits_as<Words>(a) > bits_as<Words>(b) ? a : b; };
    Block largest = broadcast_block(0.0f);
    for (int64_t i = 0; i < n; i += kBlock) {
        const Block numbers = load_block(x + i, n - i);
        largest = each_part([&](int p) {
            const Words size = bits_as<Words>(numbers.part[p]) & broadcast_words(0x7fffffffu);
            return larger_of(bits_as<Vec>(size), largest.part[p]);
        });
    }
    return fold(largest, larger_of);
}

// Sixteen tokens of a head: their keys, or their values.
template <class C>
struct KvBlock {
    BFloat16* scales;  // [head_dim / 64][16 tokens], in int8
    C* elements;
};

template <class C>
struct KvStream {
    char* slot_0;
    int64_t slot_stride;
    int64_t num_kv_heads;
    int64_t head_dim;
    int64_t slot_tokens;

    // The block that `position` is in.
    TV_INLINE KvBlock<C> keys(const int32_t* slots, int64_t kv_head, int64_t position) const {
        return block_at(slots, kv_head, position);
    }
    TV_INLINE KvBlock<C> values(const int32_t* slots, int64_t kv_head, int64_t position) const {
        return block_at(slots, num_kv_heads + kv_head, position);
    }

private:
    TV_INLINE KvBlock<C> block_at(const int32_t* slots, int64_t head, int64_t position) const {
        const int64_t num_scales = kIsScaled<C> ? ceil_div(head_dim, kGroupInputs) * kBlockTokens : 0;
        const int64_t scale_bytes = num_scales * static_cast<int64_t>(sizeof(BFloat16));
        const int64_t block_bytes = scale_bytes + kBlockTokens * head_dim * static_cast<int64_t>(sizeof(C));
        const int64_t block = (head * slot_tokens + position % slot_tokens) / kBlockTokens;
        char* address = slot_0 + slots[position / slot_tokens] * slot_stride + block * block_bytes;
        return {reinterpret_cast<BFloat16*>(address), reinterpret_cast<C*>(address + scale_bytes)};
    }
};

}  // namespace tv::TV_TARGET
