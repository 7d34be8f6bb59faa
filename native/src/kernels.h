// What a kernel is: a function of a call, a step and an item of its work; and the table of them that a target exports.
// A kernel neither allocates, locks, logs nor fails: whoever made the call has checked it.
#pragma once

#include <cstdint>

namespace tv {

enum class DType : uint8_t { float32, bfloat16, int32 };

using BFloat16 = uint16_t;  // storage only; arithmetic is float32

constexpr int kMaxOperands = 9;
constexpr int kMaxIntegers = 5;
constexpr int kPanelOutputs = 32;  // outputs of a weight panel, as in trivet/operators/panels.py
constexpr int kBlockTokens = 16;   // positions of a block of keys; a slot holds a multiple of it

// Borrowed memory. `stride` is bytes from one row to the next; vectors (weights, positions, starts) are contiguous.
struct Operand {
    char* address;
    int64_t stride;
    DType dtype;
};

struct Call {
    Operand operands[kMaxOperands];
    int64_t integers[kMaxIntegers];
    float number;  // eps or scale, where the kernel has one
};

struct Step {
    int64_t num_rows;  // of the call's extent: tokens, or rows whose logits are wanted
    int64_t num_sequences;
};

// Items are independent and write disjoint memory; any thread may run any item, in any order.
struct Kernel {
    int64_t (*count_items)(const Call&, const Step&);
    void (*run_item)(const Call&, const Step&, int64_t item);
};

struct KernelTable {
    const Kernel* embed;
    const Kernel* rms_norm;
    const Kernel* add;
    const Kernel* add_rms_norm;
    const Kernel* linear;
    const Kernel* rope_angles;
    const Kernel* rope;
    const Kernel* kv_store;
    const Kernel* rope_kv_store;
    const Kernel* attention;
    const Kernel* silu_mul;
    const Kernel* take_rows;
    const Kernel* cast;
    // What the machine could do, for comparison: bytes read, and float32 operations done.
    void (*read_bytes)(const char* address, int64_t num_bytes);
    int64_t (*multiply_add)(int64_t num_rounds);
};

}  // namespace tv
