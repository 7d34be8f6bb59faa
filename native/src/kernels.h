// What a kernel is: a function of a call, a step and an item of its work; and the table of them that a target exports.
// A kernel neither allocates, locks, logs nor fails: whoever made the call has checked it.
#pragma once

#include <cstdint>

namespace tv {

// int8 has a scale for each group of neighbours, see panels.h for weights and kv_cache.h for a cache.
enum class DType : uint8_t { float32, bfloat16, int32, int8 };

using BFloat16 = uint16_t;  // storage only; arithmetic is float32

constexpr int kMaxOperands = 9;
constexpr int kMaxIntegers = 5;
constexpr int kPanelOutputs = 32;  // outputs of a weight panel, as in trivet/operators/panels.py
constexpr int kGroupInputs = 64;   // inputs, or elements of a head, that share a scale in int8: trivet/base/dtypes.py
constexpr int kBlockTokens = 16;   // positions of a block of keys; a slot holds a multiple of it
constexpr int kMaxHeadDim = 256;   // of attention, whose rows lie on the stack

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

// What the items of one instruction may leave for each other. The counters are 0 when an instruction begins and ends;
// the floats are anything.
constexpr int64_t kScratchCounters = 256;
constexpr int64_t kScratchFloats = 4 << 20;
struct Scratch {
    uint32_t counters[kScratchCounters];
    alignas(64) float floats[kScratchFloats];
};

// Blocks that come to slots of one sequence while a step runs, one stream after the other: in each of them to the slot
// that is the `first` of the sequence, then to those behind it.
class Gate;
struct Coming {
    Gate* gate;
    int64_t first, num_slots;
    int32_t slot;  // the number of the first slot, which no other sequence has
};

constexpr int kMaxComing = 64;  // in one step

// How many of these slots have all of the stream.
int64_t num_here(const Coming& coming, int64_t stream);
// Waits until so many have; false when no more will come.
bool wait_for(const Coming& coming, int64_t stream, int64_t num_slots);

struct Step {
    int64_t num_rows;  // of the call's extent: tokens, or rows whose logits are wanted
    int64_t num_sequences;
    Scratch* scratch;
    int64_t num_threads;  // that share the items; how many there are changes no answer
    const Coming* coming = nullptr;  // for a kernel that waits itself, what it may not read before it has waited
    int64_t num_coming = 0;
    int64_t stream = 0;  // which of the streams that come the kernel reads
};

// Items write disjoint memory; any thread may run any item, in any order. None waits for another: where several make
// one thing, they count themselves, and the last of them finishes it.
struct Kernel {
    int64_t (*count_items)(const Call&, const Step&);
    void (*run_item)(const Call&, const Step&, int64_t item);
};

// What the sampler does over a whole row of logits, in groups of this many tokens: two panels of the head.
constexpr int64_t kSampleGroup = 2 * kPanelOutputs;
struct SamplePasses {
    void (*survey)(const float* row, int64_t size, float* largest);
    float (*largest)(const float* x, int64_t size);
    void (*sum_from)(const float* row, int64_t size, const float* largest, float max, float sharpness, float least,
                     float* sums);
    void (*weigh_group)(const float* group, int64_t n, float largest, float sharpness, float* weights);
    uint64_t (*find_from)(const float* group, int64_t n, float least);
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
    const Kernel* add_rms_norm_cast;
    const Kernel* top_k;
    const Kernel* router_topk;
    const Kernel* moe_permute;
    const Kernel* grouped_linear;
    const Kernel* moe_unpermute;
    const SamplePasses* sample_passes;
    // What the machine could do, for comparison: bytes read; operations done in float32, and with bfloat16 weights.
    void (*read_bytes)(const char* address, int64_t num_bytes);
    int64_t (*multiply_add)(int64_t num_rounds);
    int64_t (*multiply_pairs)(int64_t num_rounds);
};

}  // namespace tv
