// The passes of the sampler over a row of logits, in groups of 64: the largest of each group, and what its weights sum
// up to. A group is weighed against its own largest; its sum is scaled afterwards.
#include "largest.h"
#include "target.h"

namespace tv::TV_TARGET {

constexpr int kGroupBlocks = kSampleGroup / kBlock;
constexpr float kLowest = -3.40282347e38f;  // -infinity weighs nothing, and is nothing to weigh against
constexpr float kDoublingsPerNat = 1.44269504f;

struct Group {
    Block part[kGroupBlocks];
};

// A group of which n logits exist; -inf in place of the others.
TV_INLINE Group load_group(const float* logits, int64_t n) {
    Group group;
    if (n >= kSampleGroup) {
        TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) group.part[b] = load_block(logits + b * kBlock);
        return group;
    }
    TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) {
        const int64_t left = n - b * kBlock;
        const float* from = logits + b * kBlock;
        if (left >= kBlock) group.part[b] = load_block(from);
        else if (left > 0) group.part[b] = first_lanes(load_block(from, left), left, -kInfinity);
        else group.part[b] = broadcast_block(-kInfinity);
    }
    return group;
}

// How logits weigh: exp((logit - highest) · sharpness), as a power of two.
struct Scale {
    float doublings;  // of a weight for each unit of a logit
    float lowest;     // the distance at which a weight is 0, that of -infinity too

    explicit Scale(float sharpness) : doublings(sharpness * kDoublingsPerNat), lowest(-127.0f / doublings) {}
};

// 2^(x · doublings) for x ≤ 0; 0 from about -126.5 doublings on; NaN stays NaN. With fewer operations than e^x has: what
// the integer leaves of the product is rounded once. The polynomial, of least relative error on [-1/2, 1/2], is off by
// 9e-8, by 1.6e-7 when it is rounded.
TV_INLINE Vec weight_of(Vec x, const Scale& scale) {
    constexpr float kBiased = kRounder + 127.0f;
    x = greater(broadcast(scale.lowest), x);
    // The integer comes to lie in the low bits, with the bias of an exponent: from there it is shifted to its place.
    const Vec sum = fma(x, broadcast(scale.doublings), broadcast(kBiased));
    const Vec r = fma(x, broadcast(scale.doublings), kBiased - sum);
    Vec p = broadcast(1.32647272e-3f);
    p = fma(p, r, broadcast(9.67151264e-3f));
    p = fma(p, r, broadcast(5.55073374e-2f));
    p = fma(p, r, broadcast(2.40222421e-1f));
    p = fma(p, r, broadcast(6.93146978e-1f));
    p = fma(p, r, broadcast(1.0f));
    return p * bits_as<Vec>(bits_as<Words>(sum) << 23);
}

TV_INLINE Block weights_of(const Block& logits, float highest, const Scale& scale) {
    const Vec against = broadcast(highest > kLowest ? highest : kLowest);
    return each_part([&](int i) { return weight_of(logits.part[i] - against, scale); });
}

TV_INLINE Group weights_of(const Group& group, float largest, const Scale& scale) {
    Group weights;
    TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) weights.part[b] = weights_of(group.part[b], largest, scale);
    return weights;
}

// Of a group as a block: its fold is the sum.
TV_INLINE Block partial_sums(const Group& weights) {
    return (weights.part[0] + weights.part[1]) + (weights.part[2] + weights.part[3]);
}

// Sums of weights against the largest of their groups become sums of weights against the largest of all.
static void scale_sums(const float* largest, int64_t num_groups, float max, const Scale& scale, float* sums) {
    for (int64_t g = 0; g < num_groups; g += kBlock) {
        const int64_t n = num_groups - g;
        const Block scales = weights_of(load_block(largest + g, n), max, scale);
        store_block(sums + g, load_block(sums + g, n) * scales, n);
    }
}

// largest: [groups], +inf where a logit is no number.
static void survey(const float* row, int64_t size, float* largest) { find_largest<kSampleGroup>(row, size, largest); }

static float largest(const float* x, int64_t size) { return largest_of(x, size); }

// The weights of logits that are not at least `least` become 0.
TV_INLINE void keep_from(const Group& group, float least, Group& weights) {
    TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) {
        weights.part[b] = each_part([&](int i) {
            return group.part[b].part[i] >= least ? weights.part[b].part[i] : broadcast(0.0f);
        });
    }
}

// Sums of all weights of as many groups as a vector has lanes. Folded one by one they took a sixth longer (a Zen 4).
TV_INLINE void sum_each(const float* logits, const float* largest, const Scale& scale, float* sums) {
    const auto add = [](Vec a, Vec b) { return a + b; };
    Vec partial[kLanes];
    for (int g = 0; g < kLanes; ++g) {
        const Group weights = weights_of(load_group(logits + g * kSampleGroup, kSampleGroup), largest[g], scale);
        partial[g] = fold_to_vector(partial_sums(weights), add);
    }
    store(sums, fold_each(partial, add));
}

// sums: [groups], of the weights, against `max`, of the logits that are at least `least`. largest: [groups], as found of
// all of them. What is no number has been found before.
static void sum_from(const float* row, int64_t size, const float* largest, float max, float sharpness, float least,
                     float* sums) {
    const Scale scale(sharpness);
    int64_t g = 0;
    if (least == -kInfinity) {
        for (; (g + kLanes) * kSampleGroup <= size; g += kLanes) {
            sum_each(row + g * kSampleGroup, largest + g, scale, sums + g);
        }
    }
    for (int64_t first = g * kSampleGroup; first < size; first += kSampleGroup, ++g) {
        sums[g] = 0.0f;
        if (largest[g] < least) continue;
        const Group group = load_group(row + first, size - first);
        Group weights = weights_of(group, largest[g], scale);
        if (least > -kInfinity) keep_from(group, least, weights);
        sums[g] = sum_of(partial_sums(weights));
    }
    scale_sums(largest, g, max, scale, sums);
}

// weights: [64], against the largest of the group, of which n logits exist; 0 in place of the others.
static void weigh_group(const float* group, int64_t n, float largest, float sharpness, float* weights) {
    const Group found = weights_of(load_group(group, n), largest, Scale(sharpness));
    TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) store_block(weights + b * kBlock, found.part[b]);
}

// Bit i: is logit i of the group's n at least `least`?
static uint64_t find_from(const float* group, int64_t n, float least) {
    const Group logits = load_group(group, n);
    uint64_t bits = 0;
    TV_UNROLL for (int b = 0; b < kGroupBlocks; ++b) {
        TV_UNROLL for (int i = 0; i < kParts; ++i) {
            bits |= static_cast<uint64_t>(lanes_from(logits.part[b].part[i], least)) << (b * kBlock + i * kLanes);
        }
    }
    return n < kSampleGroup ? bits & ((uint64_t{1} << n) - 1) : bits;
}

const SamplePasses sample_passes = {survey, largest, sum_from, weigh_group, find_from};

}  // namespace tv::TV_TARGET
