// What the kernels of a target share: how they reach their operands, how rows become items, and their names.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace tv::TV_TARGET {

template <class T>
TV_INLINE T* row_of(const Operand& operand, int64_t row) {
    return reinterpret_cast<T*>(operand.address + row * operand.stride);
}

// Row `part` of a value [rows, parts, width]: the parts of a row lie side by side.
template <class T>
TV_INLINE T* row_of_part(const Operand& operand, int64_t part, int64_t parts, int64_t width) {
    return row_of<T>(operand, part / parts) + part % parts * width;
}

template <class T>
TV_INLINE T* vector_of(const Operand& operand) {
    return reinterpret_cast<T*>(operand.address);
}

TV_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
TV_INLINE int64_t between(int64_t low, int64_t a, int64_t high) { return a < low ? low : smaller(a, high); }
constexpr int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }
TV_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Kernels whose rows are independent and cheap run a few of them per item, no more than leaves each thread two items.
inline int64_t item_rows(const Step& step) { return between(1, step.num_rows / (2 * step.num_threads), 8); }

inline int64_t count_row_items(const Call&, const Step& step) { return ceil_div(step.num_rows, item_rows(step)); }

template <void (*RUN_ROW)(const Call&, const Step&, int64_t row)>
void run_row_item(const Call& call, const Step& step, int64_t item) {
    const int64_t rows = item_rows(step);
    const int64_t end = smaller((item + 1) * rows, step.num_rows);
    for (int64_t row = item * rows; row < end; ++row) RUN_ROW(call, step, row);
}

extern const Kernel embed, rms_norm, add, add_rms_norm, linear, rope_angles, rope, kv_store, rope_kv_store, attention,
    silu_mul, take_rows, cast, add_rms_norm_cast, top_k, router_topk, moe_permute, grouped_linear, moe_unpermute;
extern const SamplePasses sample_passes;
void read_bytes(const char* address, int64_t num_bytes);
int64_t multiply_add(int64_t num_rounds);
int64_t multiply_pairs(int64_t num_rounds);

}  // namespace tv::TV_TARGET
