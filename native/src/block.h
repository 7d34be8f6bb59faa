// Sixteen floats, on every target. Reductions are defined over these sixteen lanes and folded in one fixed tree, so
// their bits do not depend on how wide the target's vectors are.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace tv::TV_TARGET {

constexpr int kBlock = 16;
constexpr int kParts = kBlock / kLanes;

struct Block {
    Vec part[kParts];
};

template <class Make>
TV_INLINE Block each_part(Make make) {
    Block result;
    TV_UNROLL for (int i = 0; i < kParts; ++i) result.part[i] = make(i);
    return result;
}

TV_INLINE Block broadcast_block(float x) {
    return each_part([=](int) { return broadcast(x); });
}
TV_INLINE Block load_block(const float* p) {
    return each_part([=](int i) { return load(p + i * kLanes); });
}
TV_INLINE Block load_block(const BFloat16* p) {
    return each_part([=](int i) { return bits_as<Vec>(load_halves(p + i * kLanes) << 16); });
}
TV_INLINE void store_block(float* p, const Block& a) {
    TV_UNROLL for (int i = 0; i < kParts; ++i) store(p + i * kLanes, a.part[i]);
}
TV_INLINE void store_block(BFloat16* p, const Block& a) {
    TV_UNROLL for (int i = 0; i < kParts; ++i) store_halves(p + i * kLanes, round_to_halves(a.part[i]));
}

// The first n of sixteen: lanes past them read as zero, and are not written.
template <class T>
TV_INLINE Block load_block(const T* p, int64_t n) {
    if (n >= kBlock) return load_block(p);
    T padded[kBlock] = {};
    for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
    return load_block(padded);
}
template <class T>
TV_INLINE void store_block(T* p, const Block& a, int64_t n) {
    if (n >= kBlock) return store_block(p, a);
    T padded[kBlock];
    store_block(padded, a);
    for (int64_t i = 0; i < n; ++i) p[i] = padded[i];
}

TV_INLINE Block operator+(const Block& a, const Block& b) {
    return each_part([&](int i) { return a.part[i] + b.part[i]; });
}
TV_INLINE Block operator-(const Block& a, const Block& b) {
    return each_part([&](int i) { return a.part[i] - b.part[i]; });
}
TV_INLINE Block operator*(const Block& a, const Block& b) {
    return each_part([&](int i) { return a.part[i] * b.part[i]; });
}
TV_INLINE Block operator/(const Block& a, const Block& b) {
    return each_part([&](int i) { return a.part[i] / b.part[i]; });
}
TV_INLINE Block fma(const Block& a, const Block& b, const Block& c) {
    return each_part([&](int i) { return fma(a.part[i], b.part[i], c.part[i]); });
}

TV_INLINE Block larger(const Block& a, const Block& b) {
    return each_part([&](int i) { return greater(a.part[i], b.part[i]); });
}

// The first n lanes of a; `otherwise` in the rest, whatever they held.
alignas(64) static const uint32_t kFirstLanes[2 * kBlock] = {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u,
                                                             ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
TV_INLINE Block first_lanes(const Block& a, int64_t n, float otherwise) {
    return each_part([&](int i) {
        const Words chosen = load_words(kFirstLanes + kBlock - n + i * kLanes);
        return chosen != 0 ? a.part[i] : broadcast(otherwise);
    });
}

// Lanes of two vectors, one after the other, as `chosen` says of each.
template <class Choose>
TV_INLINE Vec lanes_of([[maybe_unused]] Vec a, [[maybe_unused]] Vec b, [[maybe_unused]] Choose chosen) {
#if TV_LANES == 1
    return chosen(0) == 0 ? a : b;
#elif defined(__clang__)
    Vec result;
    TV_UNROLL for (int i = 0; i < kLanes; ++i) result[i] = chosen(i) < kLanes ? a[chosen(i)] : b[chosen(i) - kLanes];
    return result;
#else
    Words lanes;
    TV_UNROLL for (int i = 0; i < kLanes; ++i) lanes[i] = chosen(i);
    return __builtin_shuffle(a, b, lanes);
#endif
}

// 16 → 8 → 4 → 2 → 1: lane i with lane i + half, whichever registers they are in. To one vector first,
template <class Combine>
TV_INLINE Vec fold_to_vector(Block a, Combine combine) {
    TV_UNROLL for (int half = kParts / 2; half > 0; half /= 2) {
        TV_UNROLL for (int i = 0; i < half; ++i) a.part[i] = combine(a.part[i], a.part[i + half]);
    }
    return a.part[0];
}

// then of as many as a vector has lanes each to one lane, all at once, in their order: WIDTH lanes of each are left, and
// two vectors become one, with half of those.
template <int WIDTH = kLanes, class Combine>
TV_INLINE Vec fold_each(Vec (&each)[kLanes], Combine combine) {
    if constexpr (WIDTH == 1) {
        return each[0];
    } else {
        constexpr int kHalf = WIDTH / 2;
        TV_UNROLL for (int i = 0; i < kHalf; ++i) {
            const Vec a = each[2 * i], b = each[2 * i + 1];
            const auto low = [](int lane) { return lane / kHalf * WIDTH + lane % kHalf; };
            const auto high = [low](int lane) { return low(lane) + kHalf; };
            each[i] = combine(lanes_of(a, b, low), lanes_of(a, b, high));
        }
        return fold_each<kHalf>(each, combine);
    }
}

template <class Combine>
TV_INLINE float fold(const Block& a, Combine combine) {
    Vec v = fold_to_vector(a, combine);
#if TV_LANES > 1
    TV_UNROLL for (int half = kLanes / 2; half > 0; half /= 2) {
        v = combine(v, lanes_of(v, v, [half](int lane) { return (lane + half) % kLanes; }));
    }
    return v[0];
#else
    return v;
#endif
}

TV_INLINE float sum_of(const Block& a) {
    return fold(a, [](Vec x, Vec y) { return x + y; });
}
TV_INLINE float max_of(const Block& a) {
    return fold(a, [](Vec x, Vec y) { return greater(x, y); });
}

// x = n ln 2 + r with |r| ≤ ln 2 / 2: e^r by its Taylor series to r^7 (what is left out is below 6e-9), and n as the
// low bits of `shifted`. The sum of both errors stays below 1.3e-7, relative.
constexpr float kRounder = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer and leaves that in the low bits
TV_INLINE Vec exp_of_rest(Vec x, Words& shifted) {
    const Vec sum = fma(x, broadcast(1.44269504f), broadcast(kRounder));
    const Vec n = sum - kRounder;
    shifted = bits_as<Words>(sum) - bits_as<uint32_t>(kRounder);
    // ln 2 in two parts, the first with enough zero bits that n times it is exact.
    Vec r = fma(n, broadcast(-0.693359375f), x);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Vec p = broadcast(1.0f / 5040);
    p = fma(p, r, broadcast(1.0f / 720));
    p = fma(p, r, broadcast(1.0f / 120));
    p = fma(p, r, broadcast(1.0f / 24));
    p = fma(p, r, broadcast(1.0f / 6));
    p = fma(p, r, broadcast(0.5f));
    p = fma(p, r, broadcast(1.0f));
    return fma(p, r, broadcast(1.0f));
}

// e^x; 0 and infinity beyond what a float holds; NaN stays NaN.
TV_INLINE Vec exp(Vec x) {
    // e^-150 is below the smallest denormal and e^150 above the largest float; the comparisons leave a NaN alone.
    x = x < -150.0f ? broadcast(-150.0f) : x;
    x = x > 150.0f ? broadcast(150.0f) : x;
    Words n;
    const Vec p = exp_of_rest(x, n);
    // 2^n as two factors, so that results below the normal range are rounded to denormals and not lost.
    const Words biased = n + broadcast_words(2 * 127);
    const Words half = biased >> 1;
    return p * bits_as<Vec>(half << 23) * bits_as<Vec>((biased - half) << 23);
}

// e^x for x ≤ 0; 0 where that is below the smallest normal float, at -infinity too; NaN stays NaN.
TV_INLINE Vec exp_of_negative(Vec x) {
    Words n;
    const Vec p = exp_of_rest(x, n);
    return x < -87.0f ? broadcast(0.0f) : p * bits_as<Vec>((n + broadcast_words(127)) << 23);
}

TV_INLINE Block exp(const Block& a) {
    return each_part([&](int i) { return exp(a.part[i]); });
}
TV_INLINE Block exp_of_negative(const Block& a) {
    return each_part([&](int i) { return exp_of_negative(a.part[i]); });
}

}  // namespace tv::TV_TARGET
