// Rotary embedding, and the writing of keys and values into the cache: apart, and fused.
#include "block.h"
#include "kv_cache.h"
#include "target.h"

namespace tv::TV_TARGET {

// positions, inv_freq, out · half · scale
static void rope_angles_row(const Call& call, const Step&, int64_t row) {
    const float position = static_cast<float>(vector_of<const int32_t>(call.operands[0])[row]);
    const float* inv_freq = vector_of<const float>(call.operands[1]);
    float* out = row_of<float>(call.operands[2], row);
    const int64_t half = call.integers[0];
    for (int64_t i = 0; i < half; ++i) {
        // The product is rounded to float32 as models were trained with it; only then is the angle exact.
        const double angle = position * inv_freq[i];
        out[i] = static_cast<float>(__builtin_cos(angle)) * call.number;
        out[half + i] = static_cast<float>(__builtin_sin(angle)) * call.number;
    }
}

// Rotates the first `rotary` elements of a head, pairs (i, i + rotary / 2), and passes the others through.
// `put(i, block, n)` takes elements i to i + n of the result; both blocks of a pair are read before either is put.
template <class Put>
TV_INLINE void rotate_head(const float* x, const float* angles, int64_t head_dim, int64_t rotary, Put put) {
    const int64_t half = rotary / 2;
    for (int64_t i = 0; i < half; i += kBlock) {
        const int64_t n = smaller(kBlock, half - i);
        const Block cosine = load_block(angles + i, n);
        const Block sine = load_block(angles + half + i, n);
        const Block first = load_block(x + i, n);
        const Block second = load_block(x + half + i, n);
        put(i, fma(first, cosine, broadcast_block(0.0f) - second * sine), n);
        put(half + i, fma(second, cosine, first * sine), n);
    }
    for (int64_t i = rotary; i < head_dim; i += kBlock) {
        const int64_t n = smaller(kBlock, head_dim - i);
        put(i, load_block(x + i, n), n);
    }
}

static void rotate_row(const float* x, const float* angles, float* out, int64_t heads, int64_t head_dim,
                       int64_t rotary) {
    for (int64_t h = 0; h < heads; ++h) {
        float* y = out + h * head_dim;
        rotate_head(x + h * head_dim, angles, head_dim, rotary,
                    [=](int64_t i, const Block& block, int64_t n) { store_block(y + i, block, n); });
    }
}

// x, angles, out · num_heads, head_dim, rotary
static void rope_row(const Call& call, const Step&, int64_t row) {
    rotate_row(row_of<const float>(call.operands[0], row), row_of<const float>(call.operands[1], row),
               row_of<float>(call.operands[2], row), call.integers[0], call.integers[1], call.integers[2]);
}

// The scale of n numbers in int8: the largest of them becomes 127. NaN where one is not finite.
static BFloat16 scale_of(const float* x, int64_t n) {
    const float largest = largest_size(x, n);
    if (!(largest < __builtin_inff())) return 0x7fc0;
    BFloat16 scale[kLanes];
    store_halves(scale, round_to_halves(broadcast(largest / 127.0f)));
    return scale[0];
}

// A head as it is stored: element d of `token`, at `place(d)` of the block. Ties go to the even neighbour.
template <class Place>
static void store_head(const KvBlock<int8_t>& block, int64_t token, const float* x, int64_t head_dim, Place place) {
    for (int64_t begin = 0; begin < head_dim; begin += kGroupInputs) {
        const int64_t n = smaller(kGroupInputs, head_dim - begin);
        const BFloat16 stored = scale_of(x + begin, n);
        block.scales[begin / kGroupInputs * kBlockTokens + token] = stored;
        const float scale = bits_as<float>(static_cast<uint32_t>(stored) << 16);
        int8_t integers[kGroupInputs] = {};
        // One too small for bfloat16 is 0. Those just above have few bits: a quotient may be beyond 127.
        for (int64_t i = 0; scale > 0.0f && i < n; ++i) {
            float quotient = x[begin + i] / scale;
            quotient = quotient > 127.0f ? 127.0f : quotient < -127.0f ? -127.0f : quotient;
            integers[i] = static_cast<int8_t>(bits_as<uint32_t>(quotient + kRounder));
        }
        for (int64_t i = 0; i < n; ++i) block.elements[place(begin + i)] = integers[i];
    }
}
template <class C, class Place>
static void store_head(const KvBlock<C>& block, int64_t, const float* x, int64_t head_dim, Place place) {
    for (int64_t d = 0; d < head_dim; d += kBlock) {
        C elements[kBlock];
        store_block(elements, load_block(x + d, head_dim - d));
        const int64_t n = smaller(kBlock, head_dim - d);
        for (int64_t i = 0; i < n; ++i) block.elements[place(d + i)] = elements[i];
    }
}

// One token into the cache; a key is rotated on the way, by no element where rotary is 0.
template <class C>
static void store_token(const KvStream<C>& stream, const int32_t* slots, int64_t position, const float* k,
                        const float* v, const float* angles, int64_t rotary) {
    const int64_t head_dim = stream.head_dim;
    const int64_t token = position % kBlockTokens;
    for (int64_t h = 0; h < stream.num_kv_heads; ++h) {
        alignas(64) float key[kMaxHeadDim];
        rotate_row(k + h * head_dim, angles, key, 1, head_dim, rotary);
        store_head(stream.keys(slots, h, position), token, key, head_dim,
                   [=](int64_t d) { return key_place<C>(d, token); });
        store_head(stream.values(slots, h, position), token, v + h * head_dim, head_dim,
                   [=](int64_t d) { return value_place<C>(d, token, head_dim); });
    }
}

struct StoreCall {
    const Operand *k, *v, *cache, *positions, *starts, *slots;
    int64_t num_kv_heads, head_dim, slot_tokens;
};

template <class C>
static void store_row(const StoreCall& call, const Step& step, int64_t row, const float* angles, int64_t rotary) {
    const KvStream<C> stream = {call.cache->address, call.cache->stride, call.num_kv_heads, call.head_dim,
                                call.slot_tokens};
    const int64_t sequence = sequence_of(vector_of<const int32_t>(*call.starts), step.num_sequences, row);
    const int64_t position = vector_of<const int32_t>(*call.positions)[row];
    store_token(stream, row_of<const int32_t>(*call.slots, sequence), position, row_of<const float>(*call.k, row),
                row_of<const float>(*call.v, row), angles, rotary);
}

static void store_row_as_cached(const StoreCall& call, const Step& step, int64_t row, const float* angles,
                                int64_t rotary) {
    switch (call.cache->dtype) {
        case DType::int8: return store_row<int8_t>(call, step, row, angles, rotary);
        case DType::bfloat16: return store_row<BFloat16>(call, step, row, angles, rotary);
        default: return store_row<float>(call, step, row, angles, rotary);
    }
}

// k, v, cache, positions, starts, slots · num_kv_heads, head_dim, slot_tokens
static void kv_store_row(const Call& call, const Step& step, int64_t row) {
    const Operand* o = call.operands;
    const int64_t* size = call.integers;
    const StoreCall store = {o, o + 1, o + 2, o + 3, o + 4, o + 5, size[0], size[1], size[2]};
    store_row_as_cached(store, step, row, nullptr, 0);
}

// q, k, v, angles, q_out, cache, positions, starts, slots · num_heads, num_kv_heads, head_dim, rotary, slot_tokens
static void rope_kv_store_row(const Call& call, const Step& step, int64_t row) {
    const Operand* o = call.operands;
    const int64_t* size = call.integers;
    const float* angles = row_of<const float>(o[3], row);
    rotate_row(row_of<const float>(o[0], row), angles, row_of<float>(o[4], row), size[0], size[2], size[3]);
    const StoreCall store = {o + 1, o + 2, o + 5, o + 6, o + 7, o + 8, size[1], size[2], size[4]};
    store_row_as_cached(store, step, row, angles, size[3]);
}

const Kernel rope_angles = {count_row_items, run_row_item<rope_angles_row>};
const Kernel rope = {count_row_items, run_row_item<rope_row>};
const Kernel kv_store = {count_row_items, run_row_item<kv_store_row>};
const Kernel rope_kv_store = {count_row_items, run_row_item<rope_kv_store_row>};

}  // namespace tv::TV_TARGET
