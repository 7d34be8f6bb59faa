// The vector of this target: `kLanes` floats, and the few operations on it that differ between targets.
// Everything is in the target's own namespace: the same source is compiled once per target, with other flags each time,
// and no function may be shared between two of them by the linker.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(TV_TARGET_NEON)
#include <arm_neon.h>
#endif

#if defined(TV_TARGET_AVX512BF16)
#define TV_TARGET avx512bf16
#define TV_LANES 16
#elif defined(TV_TARGET_AVX512)
#define TV_TARGET avx512
#define TV_LANES 16
#elif defined(TV_TARGET_AVX2)
#define TV_TARGET avx2
#define TV_LANES 8
#elif defined(TV_TARGET_NEON)
#define TV_TARGET neon
#define TV_LANES 4
#elif defined(TV_TARGET_SCALAR)
#define TV_TARGET scalar
#define TV_LANES 1
#else
#error "compile with one TV_TARGET_<NAME>"
#endif

#if defined(TV_SANITIZE)
// Every access carries a check: unrolled and inlined, a file of kernels would take minutes to compile.
#define TV_UNROLL
#define TV_INLINE inline
#elif defined(__clang__)
#define TV_UNROLL _Pragma("clang loop unroll(full)")
#define TV_INLINE inline __attribute__((always_inline))
#else
#define TV_UNROLL _Pragma("GCC unroll 32")
#define TV_INLINE inline __attribute__((always_inline))
#endif

namespace tv::TV_TARGET {

constexpr int kLanes = TV_LANES;

// Register tiles: rows that share one load of a weight or key. Chosen so that the accumulators, the loaded vectors and
// a broadcast fit the register file: 24 + 2 of 32 (avx512), 12 + 2 of 16 (avx2), 24 + 4 of 32 (neon).
#if TV_LANES == 16
constexpr int kTileRows = 12;
constexpr int kTileColumns = 2;
#elif defined(TV_TARGET_AVX2)
constexpr int kTileRows = 6;
constexpr int kTileColumns = 2;
#elif defined(TV_TARGET_NEON)
constexpr int kTileRows = 6;
constexpr int kTileColumns = 4;
#else
constexpr int kTileRows = 2;
constexpr int kTileColumns = 8;
#endif
constexpr int kAccumulators = kTileRows * kTileColumns;

template <class To, class From>
TV_INLINE To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    __builtin_memcpy(&result, &value, sizeof result);
    return result;
}

#if TV_LANES == 1

using Vec = float;
using Words = uint32_t;

TV_INLINE Vec load(const float* p) { return *p; }
TV_INLINE void store(float* p, Vec v) { *p = v; }
TV_INLINE Words load_words(const void* p) {
    Words words;
    __builtin_memcpy(&words, p, sizeof words);
    return words;
}
TV_INLINE Words load_halves(const uint16_t* p) { return *p; }
TV_INLINE void store_halves(uint16_t* p, Words v) { *p = static_cast<uint16_t>(v); }
TV_INLINE Vec broadcast(float x) { return x; }
TV_INLINE Words broadcast_words(uint32_t x) { return x; }

#else

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
// The same in memory, at the alignment of one element.
typedef float VecInMemory __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef uint32_t WordsInMemory __attribute__((vector_size(4 * kLanes), aligned(2), may_alias));
typedef uint16_t HalvesInMemory __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

TV_INLINE Vec load(const float* p) { return *reinterpret_cast<const VecInMemory*>(p); }
TV_INLINE void store(float* p, Vec v) { *reinterpret_cast<VecInMemory*>(p) = v; }
TV_INLINE Words load_words(const void* p) { return *static_cast<const WordsInMemory*>(p); }
TV_INLINE Words load_halves(const uint16_t* p) {
#if TV_LANES == 16
    // GCC 12 makes six instructions of the conversion below.
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return (Words)_mm512_maskz_cvtepu16_epi32(0xffff, halves);
#else
    return __builtin_convertvector(static_cast<Halves>(*reinterpret_cast<const HalvesInMemory*>(p)), Words);
#endif
}
TV_INLINE void store_halves(uint16_t* p, Words v) {
    *reinterpret_cast<HalvesInMemory*>(p) = __builtin_convertvector(v, Halves);
}
TV_INLINE Vec broadcast(float x) { return x - Vec{}; }
TV_INLINE Words broadcast_words(uint32_t x) { return x - Words{}; }

#endif

// a · b + c, rounded once. Never left to the compiler: a contraction it may or may not make would change the bits.
TV_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if TV_LANES == 16
    return static_cast<Vec>(_mm512_fmadd_ps(a, b, c));
#elif defined(TV_TARGET_AVX2)
    return static_cast<Vec>(_mm256_fmadd_ps(a, b, c));
#elif defined(TV_TARGET_NEON)
    return vfmaq_f32(c, a, b);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

// The greater, or the second where one of two is no number: on x86 the instruction has it so, on Arm it is chosen.
TV_INLINE Vec greater(Vec a, Vec b) {
#if TV_LANES == 16
    return static_cast<Vec>(_mm512_maskz_max_ps(0xffff, a, b));  // GCC 12 takes the plain form for a read of nothing
#elif defined(TV_TARGET_AVX2)
    return static_cast<Vec>(_mm256_max_ps(a, b));
#else
    return a > b ? a : b;
#endif
}

// Bit i: is lane i at least `least`?
TV_INLINE uint32_t lanes_from(Vec v, float least) {
#if TV_LANES == 16
    return _mm512_cmp_ps_mask(v, broadcast(least), _CMP_GE_OQ);
#elif defined(TV_TARGET_AVX2)
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(v, broadcast(least), _CMP_GE_OQ)));
#elif defined(TV_TARGET_NEON)
    const uint32x4_t bits = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vcgeq_f32(v, broadcast(least)), bits));
#else
    return v >= least;
#endif
}

// Integers of 8 bits as floats: exact.
TV_INLINE Vec load_integers(const int8_t* p) {
#if TV_LANES == 16
    // With a mask of everything: GCC 12 takes the plain forms for reads of what nobody wrote.
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return static_cast<Vec>(_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, bytes)));
#elif defined(TV_TARGET_AVX2)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return static_cast<Vec>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
#elif defined(TV_TARGET_NEON)
    uint32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
#else
    return static_cast<float>(*p);
#endif
}

// Has the compiler keep a value in a register here, and forget what it loaded from memory.
TV_INLINE void pin(Vec& v) {
#if defined(__x86_64__)
    asm volatile("" : "+v"(v) : : "memory");
#elif defined(__aarch64__)
    asm volatile("" : "+w"(v) : : "memory");
#else
    asm volatile("" : "+m"(v) : : "memory");
#endif
}

// Has the compiler not know where an address leads, so that what is stored there is in memory.
TV_INLINE void hide(float*& address) { asm volatile("" : "+r"(address) : : "memory"); }

// Asks for the line at an address, which need not be one of ours, to come into L2.
TV_INLINE void prefetch(const void* from) { __builtin_prefetch(from, 0, 2); }

// A word of two bfloat16: what lies first in memory is its low half. A float's upper half is its bfloat16.
TV_INLINE Vec low_halves(Words pairs) { return bits_as<Vec>(pairs << 16); }
TV_INLINE Vec high_halves(Words pairs) { return bits_as<Vec>(pairs & broadcast_words(0xffff0000u)); }

// To bfloat16, nearest, ties to even. A NaN stays one: the rounding bias could carry its payload into infinity.
TV_INLINE Words round_to_halves(Vec v) {
    const Words bits = bits_as<Words>(v);
    const Words rounded = (bits + broadcast_words(0x7fff) + ((bits >> 16) & broadcast_words(1))) >> 16;
    const Words quiet = (bits >> 16) | broadcast_words(0x40);
    return v != v ? quiet : rounded;
}

#if defined(TV_TARGET_AVX512BF16)
// fma(low a, low b, fma(high a, high b, c)), each rounded once, to nearest, denormals that enter or leave being zeros:
// so found of VDPBF16PS on a Zen 4, and tested (tests/unit/test_native.py) wherever this target runs.
TV_INLINE Vec dot_words(Words a, Words b, Vec c) {
    return static_cast<Vec>(_mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b));
}
// The upper halves of two floats in a word, the first's below. One shuffle that leaves the second's where they are: a
// shift and an OR are one more of what bounds a few rows of int8 (1 to 5 rows on a Zen 4: 4 to 7 % slower).
TV_INLINE Words upper_halves(Vec first, Vec second) {
    const __m512i from = _mm512_set4_epi32(0x0f0e, 0x0b0a, 0x0706, 0x0302);
    return (Words)_mm512_mask_shuffle_epi8(bits_as<__m512i>(second), 0x3333333333333333, bits_as<__m512i>(first), from);
}
// Sixteen floats as eight words; denormals become zeros.
TV_INLINE void store_rounded(uint32_t* p, Vec v) {
    const __m256bh halves = _mm512_cvtneps_pbh(v);
    __builtin_memcpy(p, &halves, sizeof halves);
}
#else
// To what a bfloat16 holds, nearest, ties to even; denormals become zeros.
TV_INLINE void store_rounded(float* p, Vec v) {
    const Words bits = bits_as<Words>(v);
    const Words rounded = bits + broadcast_words(0x7fff) + ((bits >> 16) & broadcast_words(1));
    const Words number = v != v ? bits | broadcast_words(0x400000) : rounded;
    const auto is_small = (bits & broadcast_words(0x7f800000u)) == 0;
    store(p, bits_as<Vec>(number & (is_small ? broadcast_words(0x80000000u) : broadcast_words(0xffff0000u))));
}
#endif

// While one lives, denormals that enter arithmetic or leave it are zeros in this thread: as dot_words has it, whose
// bits every target is to give. Arm looks for them before it rounds, x86 after: the two may differ at 2^-126 itself.
class NoDenormals {
public:
    explicit NoDenormals(bool is_wanted) : saved_(mode()) {
        if (is_wanted) set_mode(saved_ | kFlush);
    }
    ~NoDenormals() { set_mode(saved_); }
    NoDenormals(const NoDenormals&) = delete;
    NoDenormals& operator=(const NoDenormals&) = delete;

private:
    // The clobbers keep what is loaded and stored, and what is computed between, on their side.
#if defined(__x86_64__)
    using Mode = uint32_t;
    static constexpr Mode kFlush = 0x8040;  // FTZ and DAZ of MXCSR
    static Mode mode() {
        Mode mode;
        asm volatile("stmxcsr %0" : "=m"(mode) : : "memory");
        return mode;
    }
    static void set_mode(Mode mode) { asm volatile("ldmxcsr %0" : : "m"(mode) : "memory"); }
#elif defined(__aarch64__)
    using Mode = uint64_t;
    static constexpr Mode kFlush = 1 << 24;  // FZ of FPCR
    static Mode mode() {
        Mode mode;
        asm volatile("mrs %0, fpcr" : "=r"(mode) : : "memory");
        return mode;
    }
    static void set_mode(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
    using Mode = uint32_t;
    static constexpr Mode kFlush = 0;
    static Mode mode() { return 0; }
    static void set_mode(Mode) {}
#endif
    Mode saved_;
};

}  // namespace tv::TV_TARGET
