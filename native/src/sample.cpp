// The passes of the sampler over a whole row of logits: the largest of each group of 64, and the sums of their weights.
#include "block.h"
#include "target.h"

namespace tv::TV_TARGET {

constexpr int kGroupBlocks = kSampleGroup / kBlock;

// Block b of a group of which n logits exist; -inf in place of the others.
TV_INLINE Block load_logits(const float* group, int b, int64_t n) {
    const int64_t left = n - b * kBlock;
    if (left >= kBlock) return load_block(group + b * kBlock);
    if (left <= 0) return broadcast_block(-__builtin_inff());
    return first_lanes(load_block(group + b * kBlock, left), left, -__builtin_inff());
}

// largest: [groups]. Returns the largest of the row; NaN where a logit is NaN or +inf.
static float survey(const float* row, int64_t size, float* largest) {
    const Block infinity = broadcast_block(__builtin_inff());
    Block worst = broadcast_block(0.0f);  // above 0 in a lane that met NaN or +inf
    float most = -__builtin_inff();
    for (int64_t first = 0; first < size; first += kSampleGroup) {
        Block found = broadcast_block(-__builtin_inff());
        TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) {
            const Block logits = load_logits(row + first, b, size - first);
            worst = each_part([&](int i) { return logits.part[i] < infinity.part[i] ? worst.part[i] : infinity.part[i]; });
            found = larger(logits, found);
        }
        *largest = max_of(found);
        most = *largest > most ? *largest : most;
        ++largest;
    }
    return max_of(worst) == 0.0f ? most : __builtin_nanf("");
}

TV_INLINE Block scale(const Block& logits, float max, float sharpness) {
    return (logits - broadcast_block(max)) * broadcast_block(sharpness);
}

// 2^x for x ≤ 0; 0 where that is below the smallest normal float, at -infinity too. With fewer operations than e^x has:
// what is left of x after its integer is exact. The polynomial, of least relative error on [-1/2, 1/2], is off by
// 2e-9, and by 8e-8 as it is rounded.
TV_INLINE Vec exp2_of_negative(Vec x) {
    const Vec sum = x + kRounder;
    const Vec r = x - (sum - kRounder);
    Vec p = broadcast(1.53533620e-4f);
    p = fma(p, r, broadcast(1.33988739e-3f));
    p = fma(p, r, broadcast(9.61843692e-3f));
    p = fma(p, r, broadcast(5.55033237e-2f));
    p = fma(p, r, broadcast(2.40226477e-1f));
    p = fma(p, r, broadcast(6.93147182e-1f));
    p = fma(p, r, broadcast(1.0f));
    // The integer is in the low bits of `sum`; what lies above it is shifted out.
    const Words scaled = bits_as<Words>(p) + (bits_as<Words>(sum) << 23);
    return x < -125.0f ? broadcast(0.0f) : bits_as<Vec>(scaled);
}

// exp((logit - max) · sharpness) of a group of which n logits exist; 0 in place of the others.
TV_INLINE void weigh_blocks(const float* group, int64_t n, float max, float sharpness, Block (&weights)[kGroupBlocks]) {
    const float doublings = sharpness * 1.44269504f;
    TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) {
        const Block scaled = scale(load_logits(group, b, n), max, doublings);
        weights[b] = each_part([&](int i) { return exp2_of_negative(scaled.part[i]); });
    }
}

static void weigh_group(const float* group, int64_t n, float max, float sharpness, float* weights) {
    Block blocks[kGroupBlocks];
    weigh_blocks(group, n, max, sharpness, blocks);
    TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) store_block(weights + b * kBlock, blocks[b]);
}

TV_INLINE float sum_of(const Block (&weights)[kGroupBlocks]) {
    return sum_of((weights[0] + weights[1]) + (weights[2] + weights[3]));
}

// weights: [groups · 64]; sums: [groups]. Returns the sum of those.
static double weigh_row(const float* row, int64_t size, float max, float sharpness, float* weights, float* sums) {
    double total = 0.0;
    for (int64_t first = 0; first < size; first += kSampleGroup) {
        Block blocks[kGroupBlocks];
        weigh_blocks(row + first, size - first, max, sharpness, blocks);
        TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) store_block(weights + first + b * kBlock, blocks[b]);
        *sums = sum_of(blocks);
        total += *sums++;
    }
    return total;
}

// The places of a group of which n logits exist; the last for the others.
static void place_group(const float* group, int64_t n, float max, float sharpness, uint16_t* places) {
    // Adding 2^23 rounds to an integer and leaves it in the low bits.
    const float rounder = 8388608.0f, last = kNumSamplePlaces - 1;
    TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) {
        const Block scaled = scale(load_logits(group, b, n), max, sharpness);
        TV_UNROLL for (int i = 0; i < kParts; ++i) {
            const Vec below = scaled.part[i] * -kPlacesPerNat;
            const Vec place = below < last ? below : broadcast(last);
            store_halves(places + b * kBlock + i * kLanes, bits_as<Words>(place + rounder));
        }
    }
}

// Of weights [size], whole groups, the sum of those that are at least `least`.
static float sum_from(const float* weights, int64_t size, float least) {
    Block sums[kGroupBlocks];
    TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) sums[b] = broadcast_block(0.0f);
    for (int64_t first = 0; first < size; first += kSampleGroup) {
        TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) {
            const Block each = load_block(weights + first + b * kBlock);
            sums[b] = sums[b] + each_part([&](int i) {
                return each.part[i] >= least ? each.part[i] : broadcast(0.0f);
            });
        }
    }
    return sum_of(sums);
}

// sums: [groups], the weights of the logits from `high` on; open: [groups], a bit for each logit from `low` up to
// `high`. Returns the sum of the sums.
static double split_row(const float* row, int64_t size, const float* weights, float low, float high, float* sums,
                        uint64_t* open) {
    double total = 0.0;
    for (int64_t first = 0; first < size; first += kSampleGroup) {
        Block kept[kGroupBlocks];
        uint64_t bits = 0;
        TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) {
            const Block logits = load_logits(row + first, b, size - first);
            TV_UNROLL for (int i = 0; i < kParts; ++i) {
                const int at = b * kBlock + i * kLanes;
                const Vec each = logits.part[i];
                kept[b].part[i] = each >= high ? load(weights + first + at) : broadcast(0.0f);
                bits |= static_cast<uint64_t>(lanes_from(each, low) ^ lanes_from(each, high)) << at;
            }
        }
        *sums = sum_of(kept);
        total += *sums++;
        *open++ = bits;
    }
    return total;
}

const SamplePasses sample_passes = {survey, weigh_group, weigh_row, place_group, sum_from, split_row};

}  // namespace tv::TV_TARGET
