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

// largest: [groups]. Returns whether every logit is finite or -inf, and one of them finite.
static bool survey(const float* row, int64_t size, float* largest) {
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
    return max_of(worst) == 0.0f && most > -__builtin_inff();
}

TV_INLINE Block scale(const Block& logits, float max, float sharpness) {
    return (logits - broadcast_block(max)) * broadcast_block(sharpness);
}

// exp((logit - max) · sharpness) of a group of which n logits exist; 0 in place of the others.
TV_INLINE void weigh_blocks(const float* group, int64_t n, float max, float sharpness, Block (&scaled)[kGroupBlocks],
                            Block (&weights)[kGroupBlocks]) {
    TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) {
        scaled[b] = scale(load_logits(group, b, n), max, sharpness);
        weights[b] = exp(scaled[b]);
    }
}

static void weigh_group(const float* group, int64_t n, float max, float sharpness, float* weights) {
    Block scaled[kGroupBlocks], blocks[kGroupBlocks];
    weigh_blocks(group, n, max, sharpness, scaled, blocks);
    TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) store_block(weights + b * kBlock, blocks[b]);
}

// weights: [groups · 64]; sums: [groups]; above: what all those weights are together that lie above each of kSampleLevels.
static void weigh_row(const float* row, int64_t size, float max, float sharpness, float* weights, float* sums,
                      float* above) {
    Block level_sums[kNumSampleLevels];
    TV_UNROLL for (int l = 0; l < kNumSampleLevels; ++l) level_sums[l] = broadcast_block(0.0f);
    for (int64_t first = 0; first < size; first += kSampleGroup) {
        Block scaled[kGroupBlocks], blocks[kGroupBlocks];
        weigh_blocks(row + first, size - first, max, sharpness, scaled, blocks);
        TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) {
            store_block(weights + first + b * kBlock, blocks[b]);
            TV_UNROLL for (int l = 0; l < kNumSampleLevels; ++l) {
                level_sums[l] = level_sums[l] + each_part([&](int i) {
                    return scaled[b].part[i] >= kSampleLevels[l] ? blocks[b].part[i] : broadcast(0.0f);
                });
            }
        }
        *sums++ = sum_of((blocks[0] + blocks[1]) + (blocks[2] + blocks[3]));
    }
    for (int l = 0; l < kNumSampleLevels; ++l) above[l] = sum_of(level_sums[l]);
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

// The weights of the logits above one.
static float sum_above(const float* group, int64_t n, const float* weights, float logit) {
    Block kept[kGroupBlocks];
    TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) {
        const Block logits = load_logits(group, b, n);
        kept[b] = each_part([&](int i) {
            return logits.part[i] > logit ? load(weights + b * kBlock + i * kLanes) : broadcast(0.0f);
        });
    }
    return sum_of((kept[0] + kept[1]) + (kept[2] + kept[3]));
}

const SamplePasses sample_passes = {survey, weigh_group, weigh_row, place_group, sum_above};

}  // namespace tv::TV_TARGET
