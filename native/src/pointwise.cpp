// Kernels that touch each element once: embed, add, silu_mul, take_rows, cast.
#include "block.h"
#include "panels.h"
#include "target.h"

namespace tv::TV_TARGET {

template <class From, class To>
static void copy_row(const From* from, To* to, int64_t width) {
    for (int64_t i = 0; i < width; i += kBlock) store_block(to + i, load_block(from + i, width - i), width - i);
}

// A row in int8 has its integers, then the scales of its groups.
static void copy_row(const int8_t* integers, float* out, int64_t hidden) {
    const char* scales = reinterpret_cast<const char*>(integers + hidden);
    for (int64_t i = 0; i < hidden; ++i) {
        BFloat16 scale;
        __builtin_memcpy(&scale, scales + i / kGroupInputs * 2, sizeof scale);
        out[i] = static_cast<float>(integers[i]) * bits_as<float>(static_cast<uint32_t>(scale) << 16);
    }
}

// tokens, table, out · hidden, is_panels
static void embed_row(const Call& call, const Step&, int64_t row) {
    const Operand& table = call.operands[1];
    const int64_t hidden = call.integers[0];
    const bool is_panels = call.integers[1] != 0;
    const int64_t token = vector_of<const int32_t>(call.operands[0])[row];
    float* out = row_of<float>(call.operands[2], row);
    switch (table.dtype) {
        case DType::int8:
            if (is_panels) return read_row<Int8Panel>(table.address, token, hidden, out);
            return copy_row(row_of<const int8_t>(table, token), out, hidden);
        case DType::bfloat16:
            if (is_panels) return read_row<HalfPanel>(table.address, token, hidden, out);
            return copy_row(row_of<const BFloat16>(table, token), out, hidden);
        default:
            if (is_panels) return read_row<FloatPanel>(table.address, token, hidden, out);
            copy_row(row_of<const float>(table, token), out, hidden);
    }
}

// a, b, out · width
static void add_row(const Call& call, const Step&, int64_t row) {
    const float* a = row_of<const float>(call.operands[0], row);
    const float* b = row_of<const float>(call.operands[1], row);
    float* out = row_of<float>(call.operands[2], row);
    const int64_t width = call.integers[0];
    for (int64_t i = 0; i < width; i += kBlock) {
        store_block(out + i, load_block(a + i, width - i) + load_block(b + i, width - i), width - i);
    }
}

// gate, up, out · width
static void silu_mul_row(const Call& call, const Step&, int64_t row) {
    const float* gate = row_of<const float>(call.operands[0], row);
    const float* up = row_of<const float>(call.operands[1], row);
    float* out = row_of<float>(call.operands[2], row);
    const int64_t width = call.integers[0];
    const Block zero = broadcast_block(0.0f);
    const Block one = broadcast_block(1.0f);
    for (int64_t i = 0; i < width; i += kBlock) {
        const Block g = load_block(gate + i, width - i);
        const Block silu = g / (one + exp(zero - g));
        store_block(out + i, silu * load_block(up + i, width - i), width - i);
    }
}

// x, rows, out · width
static void take_row(const Call& call, const Step&, int64_t row) {
    const int64_t taken = vector_of<const int32_t>(call.operands[1])[row];
    copy_row(row_of<const float>(call.operands[0], taken), row_of<float>(call.operands[2], row), call.integers[0]);
}

// x, out · width
static void cast_row(const Call& call, const Step&, int64_t row) {
    const Operand& x = call.operands[0];
    const Operand& out = call.operands[1];
    const int64_t width = call.integers[0];
    if (x.dtype == DType::float32) return copy_row(row_of<const float>(x, row), row_of<BFloat16>(out, row), width);
    copy_row(row_of<const BFloat16>(x, row), row_of<float>(out, row), width);
}

const Kernel embed = {count_row_items, run_row_item<embed_row>};
const Kernel add = {count_row_items, run_row_item<add_row>};
const Kernel silu_mul = {count_row_items, run_row_item<silu_mul_row>};
const Kernel take_rows = {count_row_items, run_row_item<take_row>};
const Kernel cast = {count_row_items, run_row_item<cast_row>};

}  // namespace tv::TV_TARGET
