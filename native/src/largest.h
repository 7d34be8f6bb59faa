// The largest of each group of a row: a head leaves that of each panel beside its logits, the sampler finds those of its
// own groups. What is no number ranks with +inf, so that it is seen and not skipped.
#pragma once

#include "block.h"

namespace tv::TV_TARGET {

constexpr float kInfinity = __builtin_inff();

// `most` is a number.
TV_INLINE Block larger_ranked(const Block& a, const Block& most) {
    return each_part([&](int i) {
        return a.part[i] < broadcast(kInfinity) ? greater(a.part[i], most.part[i]) : broadcast(kInfinity);
    });
}

// Of x [SIZE], whole blocks.
template <int64_t SIZE>
TV_INLINE float largest_of(const float* x) {
    Block most = broadcast_block(-kInfinity);
    TV_UNROLL for (int64_t i = 0; i < SIZE; i += kBlock) most = larger_ranked(load_block(x + i), most);
    return max_of(most);
}

// Of x [size]; -inf of none.
inline float largest_of(const float* x, int64_t size) {
    Block most = broadcast_block(-kInfinity);
    for (int64_t i = 0; i < size; i += kBlock) {
        const int64_t rest = size - i < kBlock ? size - i : kBlock;
        most = larger_ranked(first_lanes(load_block(x + i, rest), rest, -kInfinity), most);
    }
    return max_of(most);
}

// largest: one for each SIZE of the row, the last of them for what is left.
template <int64_t SIZE>
TV_INLINE void find_largest(const float* row, int64_t size, float* largest) {
    int64_t first = 0;
    for (; first + SIZE <= size; first += SIZE) *largest++ = largest_of<SIZE>(row + first);
    if (first < size) *largest = largest_of(row + first, size - first);
}

}  // namespace tv::TV_TARGET
