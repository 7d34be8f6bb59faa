// The formats of a panel of weights, 32 outputs of every input: how its bytes become numbers. Each is a source of vectors
// for a run of inputs from k on: load() gives outputs `column` · lanes onward, and those sixteen further on.
// The bytes lie as trivet/operators/panels.py says.
#pragma once

#include "block.h"
#include "target.h"

namespace tv::TV_TARGET {

constexpr int kPanelColumns = kBlock / kLanes;  // vectors across half a panel

struct FloatPanel {
    static constexpr int64_t kInputBytes = kPanelOutputs * 4;
    static constexpr bool kIsScaled = false;
    static constexpr int64_t kRun = INT64_MAX;
    const float* weight;

    static int64_t bytes(int64_t inputs) { return inputs * kInputBytes; }
    TV_INLINE FloatPanel(const char* panel, int64_t k)
        : weight(reinterpret_cast<const float*>(panel) + k * kPanelOutputs) {}
    TV_INLINE void load(int64_t i, int column, Vec& low, Vec& high) const {
        low = tv::TV_TARGET::load(weight + i * kPanelOutputs + column * kLanes);
        high = tv::TV_TARGET::load(weight + i * kPanelOutputs + column * kLanes + kBlock);
    }
    static float at(const char* panel, int64_t k, int64_t lane) { return FloatPanel(panel, k).weight[lane]; }
};

// Pair words: outputs i and i + 16.
struct HalfPanel {
    static constexpr int64_t kInputBytes = kPanelOutputs * 2;
    static constexpr bool kIsScaled = false;
    static constexpr int64_t kRun = INT64_MAX;
    const BFloat16* weight;

    static int64_t bytes(int64_t inputs) { return inputs * kInputBytes; }
    TV_INLINE HalfPanel(const char* panel, int64_t k)
        : weight(reinterpret_cast<const BFloat16*>(panel) + k * kPanelOutputs) {}
    TV_INLINE void load(int64_t i, int column, Vec& low, Vec& high) const {
        const Words pairs = load_words(weight + i * kPanelOutputs + 2 * column * kLanes);
        low = low_halves(pairs);
        high = high_halves(pairs);
    }
    static float at(const char* panel, int64_t k, int64_t lane) {
        const BFloat16 half = HalfPanel(panel, k).weight[lane % kBlock * 2 + lane / kBlock];
        return bits_as<float>(static_cast<uint32_t>(half) << 16);
    }
};

// Groups of inputs: the scales of 32 outputs as pair words, then 32 integers for each input. What load() gives is not
// scaled: a chain runs over the integers of a group, and its sum is scaled once. (Scaling every weight instead, which
// is exact, costs a multiplication for each: 21 in place of 29 GB/s on one core of a Zen 4.)
struct Int8Panel {
    static constexpr int64_t kInputBytes = kPanelOutputs;
    static constexpr bool kIsScaled = true;
    static constexpr int64_t kRun = kGroupInputs;
    static constexpr int64_t kScaleBytes = kPanelOutputs * 2;
    static constexpr int64_t kGroupBytes = kScaleBytes + kGroupInputs * kPanelOutputs;
    const char* group;

    static int64_t bytes(int64_t inputs) {
        return inputs * kInputBytes + ceil_div(inputs, kGroupInputs) * kScaleBytes;
    }
    // k is the first input of its group.
    TV_INLINE Int8Panel(const char* panel, int64_t k) : group(panel + k / kGroupInputs * kGroupBytes) {}
    TV_INLINE const int8_t* integers() const { return reinterpret_cast<const int8_t*>(group + kScaleBytes); }
    TV_INLINE void load(int64_t i, int column, Vec& low, Vec& high) const {
        const int8_t* from = integers() + i * kPanelOutputs + column * kLanes;
        low = load_integers(from);
        high = load_integers(from + kBlock);
    }
    TV_INLINE void load_scales(int column, Vec& low, Vec& high) const {
        HalfPanel(group, 0).load(0, column, low, high);
    }
    static float at(const char* panel, int64_t k, int64_t lane) {
        const Int8Panel found(panel, k);
        const int8_t integer = found.integers()[k % kGroupInputs * kPanelOutputs + lane];
        return static_cast<float>(integer) * HalfPanel::at(found.group, 0, lane);
    }
};

// A row of a table in panels: input after input of one output.
template <class Panel>
static void read_row(const char* panels, int64_t output, int64_t inputs, float* out) {
    const char* panel = panels + output / kPanelOutputs * Panel::bytes(inputs);
    for (int64_t k = 0; k < inputs; ++k) out[k] = Panel::at(panel, k, output % kPanelOutputs);
}

}  // namespace tv::TV_TARGET
