// How weights lie in panels, 32 outputs of every input, and by which chains they are multiplied. The bytes lie as
// trivet/operators/panels.py says.
#pragma once

#include "chains.h"

namespace tv::TV_TARGET {

constexpr int kPanelColumns = kPanelOutputs / kLanes;  // vectors across a panel

// The formats. Each is a source of factors for a run of inputs: load(turn, i, column) is of the i-th element of a turn,
// outputs `column` · lanes onward. Inputs are padded to whole turns. From kFetchRows rows on it
// was faster to fetch what comes next (one core of a Zen 4).
struct FloatPanel {
    using Chain = Singles;
    static constexpr bool kIsScaled = false;
    static constexpr int64_t kTurnBytes = kPanelOutputs * 4;
    static constexpr int kFetchRows = 2;
    static constexpr bool kIsOneLoad = false;
    static constexpr bool kIsHeld = false;
    const float* weight;

    static int64_t bytes(int64_t inputs) { return inputs * kTurnBytes; }
    TV_INLINE FloatPanel(const char* panel, int64_t input)
        : weight(reinterpret_cast<const float*>(panel) + input * kPanelOutputs) {}
    TV_INLINE Vec load(int64_t turn, int, int column) const {
        return tv::TV_TARGET::load(weight + turn * kPanelOutputs + column * kLanes);
    }
    static float at(const char* panel, int64_t k, int64_t lane) { return FloatPanel(panel, k).weight[lane]; }
};

// A word has two inputs of an output, a turn those of 32 outputs.
struct HalfPanel {
    using Chain = Pairs;
    static constexpr bool kIsScaled = false;
    static constexpr int64_t kTurnBytes = kPanelOutputs * 4;
    static constexpr int kFetchRows = Chain::kInputs == 2 ? 5 : 2;
    static constexpr bool kIsOneLoad = true;  // all elements of a turn
    static constexpr bool kIsHeld = true;     // in a register: what is multiplied is not as it lies in memory
    const char* turns;

    static int64_t bytes(int64_t inputs) { return ceil_div(inputs, 2) * kTurnBytes; }
    // `input` is even.
    TV_INLINE HalfPanel(const char* panel, int64_t input) : turns(panel + input / 2 * kTurnBytes) {}
    TV_INLINE Chain::Factor load(int64_t turn, int i, int column) const {
        return Chain::factor_of(load_words(turns + turn * kTurnBytes + column * kLanes * 4), i);
    }
    static float at(const char* panel, int64_t k, int64_t lane) {
        BFloat16 half;
        __builtin_memcpy(&half, panel + k / 2 * kTurnBytes + lane * 4 + k % 2 * 2, sizeof half);
        return bits_as<float>(static_cast<uint32_t>(half) << 16);
    }
};

// Groups of inputs: the scales of 32 outputs in bfloat16, then 32 integers for each input. What load() gives is not
// scaled: a chain runs over the integers of a group, and its sum is scaled once. (Scaling every weight instead, which
// is exact, costs a multiplication for each: 21 in place of 29 GB/s on one core of a Zen 4.)
struct Int8Panel {
    using Chain = Pairs;
    static constexpr bool kIsScaled = true;
    static constexpr int64_t kRun = kGroupInputs;
    static constexpr int64_t kTurnBytes = kPanelOutputs * 2;
    static constexpr int kFetchRows = Chain::kInputs == 2 ? 4 : 3;
    static constexpr bool kIsOneLoad = false;
    static constexpr bool kIsHeld = true;
    static constexpr int64_t kScaleBytes = kPanelOutputs * 2;
    static constexpr int64_t kGroupBytes = kScaleBytes + kGroupInputs * kPanelOutputs;
    const char* group;

    static int64_t bytes(int64_t inputs) {
        return ceil_div(inputs, 2) * kTurnBytes + ceil_div(inputs, kGroupInputs) * kScaleBytes;
    }
    // `input` is the first of its group.
    TV_INLINE Int8Panel(const char* panel, int64_t input) : group(panel + input / kGroupInputs * kGroupBytes) {}
    TV_INLINE void go_on() { group += kGroupBytes; }  // with the next group
    TV_INLINE Vec integers(int64_t input, int column) const {
        const char* from = group + kScaleBytes + input * kPanelOutputs + column * kLanes;
        return load_integers(reinterpret_cast<const int8_t*>(from));
    }
#if defined(TV_TARGET_AVX512BF16)
    // Integers of eight bits have nothing in the lower half of their floats.
    TV_INLINE Words load(int64_t turn, int, int column) const {
        return upper_halves(integers(2 * turn, column), integers(2 * turn + 1, column));
    }
#else
    TV_INLINE Vec load(int64_t turn, int i, int column) const { return integers(2 * turn + i, column); }
#endif
    TV_INLINE Vec scales(int column) const {
        const BFloat16* halves = reinterpret_cast<const BFloat16*>(group) + column * kLanes;
        return bits_as<Vec>(load_halves(halves) << 16);
    }
    static float at(const char* panel, int64_t k, int64_t lane) {
        const char* group = panel + k / kGroupInputs * kGroupBytes;
        const int8_t* integers = reinterpret_cast<const int8_t*>(group + kScaleBytes);
        const uint32_t scale = reinterpret_cast<const BFloat16*>(group)[lane];
        return static_cast<float>(integers[k % kGroupInputs * kPanelOutputs + lane]) * bits_as<float>(scale << 16);
    }
};

// A row of a table in panels: input after input of one output.
template <class Panel>
static void read_row(const char* panels, int64_t output, int64_t inputs, float* out) {
    const char* panel = panels + output / kPanelOutputs * Panel::bytes(inputs);
    for (int64_t k = 0; k < inputs; ++k) out[k] = Panel::at(panel, k, output % kPanelOutputs);
}

}  // namespace tv::TV_TARGET
