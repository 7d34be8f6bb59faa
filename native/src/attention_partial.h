// What is known of a row after some of its positions, and how two such become one.
#pragma once

#include "block.h"
#include "target.h"

namespace tv::TV_TARGET {

// What a row makes of a span, or of its positions so far: the largest score, the sum of the weights relative to it, by
// lane and in all, and the weighted sum of the values. As floats: max, sum, a gap to the next block, a block of lanes,
// then head_dim values and zeros to the end of a block.
struct Partial {
    float* memory;

    static int64_t floats(int64_t head_dim) { return 2 * kBlock + ceil_div(head_dim, kBlock) * kBlock; }
    float& max() const { return memory[0]; }
    float& sum() const { return memory[1]; }
    float* lanes() const { return memory + kBlock; }
    float* values() const { return memory + 2 * kBlock; }

    void clear(int64_t head_dim) const {
        max() = -__builtin_inff();
        sum() = 0.0f;
        store_block(lanes(), broadcast_block(0.0f));
        for (int64_t d = 0; d < head_dim; d += kBlock) store_block(values() + d, broadcast_block(0.0f));
    }
};

static constexpr int64_t kMaxPartialFloats = 2 * kBlock + kMaxHeadDim;

// `total`, of the spans so far, becomes that of the next one too.
static void merge(const Partial& total, const Partial& next, int64_t head_dim) {
    const float max = total.max() > next.max() ? total.max() : next.max();
    alignas(64) float shrinks[kBlock] = {total.max() - max, next.max() - max};
    store_block(shrinks, exp(load_block(shrinks)));
    total.max() = max;
    total.sum() = total.sum() * shrinks[0] + next.sum() * shrinks[1];
    for (int64_t d = 0; d < head_dim; d += kBlock) {
        const Block before = load_block(total.values() + d) * broadcast_block(shrinks[0]);
        store_block(total.values() + d, fma(load_block(next.values() + d), broadcast_block(shrinks[1]), before));
    }
}

}  // namespace tv::TV_TARGET
