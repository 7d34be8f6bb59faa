// Where a position's key and value lie, as in trivet/operators/kv_layout.py. A stream inside a slot: keys as
// [kv head][slot_tokens / 16][head_dim / pair][16 tokens][pair], so that one load holds an element of sixteen keys, or a
// pair of elements where two fit a word; then values as [kv head][slot_tokens][head_dim].
#pragma once

#include "kernels.h"
#include "simd.h"

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

// Elements of a key that lie side by side: as many as fit a word.
template <class C>
constexpr int64_t kKeyPair = 4 / sizeof(C);

// Where in its block of keys element d of a token is.
template <class C>
TV_INLINE int64_t key_place(int64_t d, int64_t token) {
    return (d / kKeyPair<C> * kBlockTokens + token) * kKeyPair<C> + d % kKeyPair<C>;
}

template <class C>
struct KvStream {
    char* slot_0;
    int64_t slot_stride;
    int64_t num_kv_heads;
    int64_t head_dim;
    int64_t slot_tokens;

    TV_INLINE C* slot_at(const int32_t* slots, int64_t position) const {
        return reinterpret_cast<C*>(slot_0 + slots[position / slot_tokens] * slot_stride);
    }
    // [head_dim / pair][16 tokens][pair]: the block of keys that `position` is in.
    TV_INLINE C* keys(const int32_t* slots, int64_t kv_head, int64_t position) const {
        const int64_t block = position % slot_tokens / kBlockTokens;
        return slot_at(slots, position) + (kv_head * slot_tokens + block * kBlockTokens) * head_dim;
    }
    // [head_dim]: the value of `position`; those of the positions after it follow, to the end of the slot.
    TV_INLINE C* values(const int32_t* slots, int64_t kv_head, int64_t position) const {
        const int64_t token = position % slot_tokens;
        return slot_at(slots, position) + ((num_kv_heads + kv_head) * slot_tokens + token) * head_dim;
    }
};

}  // namespace tv::TV_TARGET
