// Root-mean-square normalisation, alone and with the residual add before it.
#include "block.h"
#include "target.h"

namespace tv::TV_TARGET {

// out = x / sqrt(mean(x²) + eps) · weight
static void normalise(const float* x, const float* weight, float* out, int64_t size, float eps) {
    Block squares = broadcast_block(0.0f);
    for (int64_t i = 0; i < size; i += kBlock) {
        const Block v = load_block(x + i, size - i);
        squares = fma(v, v, squares);
    }
    const float mean = sum_of(squares) / static_cast<float>(size);
    const Block factor = broadcast_block(1.0f / __builtin_sqrtf(mean + eps));
    for (int64_t i = 0; i < size; i += kBlock) {
        const Block v = load_block(x + i, size - i) * factor;
        store_block(out + i, v * load_block(weight + i, size - i), size - i);
    }
}

// x, weight, out · num_groups, size · eps
static void rms_norm_row(const Call& call, const Step&, int64_t row) {
    const float* x = row_of<const float>(call.operands[0], row);
    const float* weight = vector_of<const float>(call.operands[1]);
    float* out = row_of<float>(call.operands[2], row);
    const int64_t num_groups = call.integers[0];
    const int64_t size = call.integers[1];
    for (int64_t g = 0; g < num_groups; ++g) normalise(x + g * size, weight, out + g * size, size, call.number);
}

// a, b, weight, sum, out · size · eps
static void add_rms_norm_row(const Call& call, const Step&, int64_t row) {
    const float* a = row_of<const float>(call.operands[0], row);
    const float* b = row_of<const float>(call.operands[1], row);
    float* sum = row_of<float>(call.operands[3], row);
    const int64_t size = call.integers[0];
    for (int64_t i = 0; i < size; i += kBlock) {
        store_block(sum + i, load_block(a + i, size - i) + load_block(b + i, size - i), size - i);
    }
    normalise(sum, vector_of<const float>(call.operands[2]), row_of<float>(call.operands[4], row), size, call.number);
}

// a, b, weight, sum, out, wide · size · eps: `out` is what add_rms_norm makes, `wide` the same before it is rounded
static void add_rms_norm_cast_row(const Call& call, const Step& step, int64_t row) {
    Call in_float = call;
    in_float.operands[4] = call.operands[5];
    add_rms_norm_row(in_float, step, row);
    const float* wide = row_of<const float>(call.operands[5], row);
    const int64_t size = call.integers[0];
    for (int64_t i = 0; i < size; i += kBlock) {
        const Block values = load_block(wide + i, size - i);
        if (call.operands[4].dtype == DType::float32) {
            store_block(row_of<float>(call.operands[4], row) + i, values, size - i);
        } else {
            store_block(row_of<BFloat16>(call.operands[4], row) + i, values, size - i);
        }
    }
}

const Kernel rms_norm = {count_row_items, run_row_item<rms_norm_row>};
const Kernel add_rms_norm = {count_row_items, run_row_item<add_rms_norm_row>};
const Kernel add_rms_norm_cast = {count_row_items, run_row_item<add_rms_norm_cast_row>};

}  // namespace tv::TV_TARGET
