// Tokens to their experts and back. A pair is one choice of one token, in the order of tokens, then of choices; rows
// ordered by expert keep that order within an expert. A row's place and the order in which a token's parts are added
// follow from the routing alone; a row's product is one chain of fma, as in a linear, whoever shares its expert.
#include "block.h"
#include "target.h"

namespace tv::TV_TARGET {

// Row `pair` of a value [tokens, chosen, width]: tokens lie a stride apart, the parts of one side by side.
template <class T>
TV_INLINE T* row_of_pair(const Operand& operand, int64_t pair, int64_t chosen, int64_t width) {
    return row_of<T>(operand, pair / chosen) + pair % chosen * width;
}

// x, experts, y, places, ends · width, chosen, num_experts
static int64_t count_experts(const Call& call, const Step&) { return call.integers[2]; }

// An item is an expert: it counts the pairs before its own, then takes its own in order. Nothing is shared, nothing
// sorted.
static void permute_expert(const Call& call, const Step& step, int64_t expert) {
    const int64_t width = call.integers[0];
    const int64_t chosen = call.integers[1];
    int64_t place = 0;
    for (int64_t token = 0; token < step.num_rows; ++token) {
        const int32_t* experts = row_of<const int32_t>(call.operands[1], token);
        for (int64_t c = 0; c < chosen; ++c) place += experts[c] < expert;
    }
    for (int64_t token = 0; token < step.num_rows; ++token) {
        const int32_t* experts = row_of<const int32_t>(call.operands[1], token);
        for (int64_t c = 0; c < chosen; ++c) {
            if (experts[c] != expert) continue;
            const float* from = row_of<const float>(call.operands[0], token);
            float* to = row_of_pair<float>(call.operands[2], place, chosen, width);
            for (int64_t i = 0; i < width; i += kBlock) store_block(to + i, load_block(from + i, width - i), width - i);
            row_of<int32_t>(call.operands[3], token)[c] = static_cast<int32_t>(place++);
        }
    }
    vector_of<int32_t>(call.operands[4])[expert] = static_cast<int32_t>(place);
}

// x, weight, ends, y · chosen, in, out, num_experts
struct GroupedCall {
    const Operand *x, *weight, *y;
    const int32_t* ends;
    int64_t chosen, inputs, outputs, num_experts, num_panels;

    explicit GroupedCall(const Call& call)
        : x(call.operands), weight(call.operands + 1), y(call.operands + 3),
          ends(vector_of<const int32_t>(call.operands[2])), chosen(call.integers[0]), inputs(call.integers[1]),
          outputs(call.integers[2]), num_experts(call.integers[3]), num_panels(ceil_div(outputs, kPanelOutputs)) {}
};

constexpr int kPanelColumns = kBlock / kLanes;  // vectors of pair words across a panel

// Outputs `column` · lanes onward of a panel's row, and those sixteen further on.
TV_INLINE void load_pair(const BFloat16* weight, int column, Vec& low, Vec& high) {
    const Words pairs = load_words(weight + 2 * column * kLanes);
    low = low_halves(pairs);
    high = high_halves(pairs);
}
TV_INLINE void load_pair(const float* weight, int column, Vec& low, Vec& high) {
    low = load(weight + column * kLanes);
    high = load(weight + kBlock + column * kLanes);
}

// ROWS pairs times a panel: sums [ROWS, 32]. weight: [inputs, 32]; x: where each row begins.
template <int ROWS, int COLUMNS, class W>
TV_INLINE void multiply_rows(const W* weight, const float* const* x, float* sums, int64_t inputs) {
    for (int first = 0; first < kPanelColumns; first += COLUMNS) {
        Vec low[ROWS][COLUMNS];
        Vec high[ROWS][COLUMNS];
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) low[r][c] = high[r][c] = broadcast(0.0f);
        }
        for (int64_t k = 0; k < inputs; ++k) {
            Vec low_weight[COLUMNS];
            Vec high_weight[COLUMNS];
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
                load_pair(weight + k * kPanelOutputs, first + c, low_weight[c], high_weight[c]);
            }
            TV_UNROLL for (int r = 0; r < ROWS; ++r) {
                const Vec element = broadcast(x[r][k]);
                TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
                    low[r][c] = fma(low_weight[c], element, low[r][c]);
                    high[r][c] = fma(high_weight[c], element, high[r][c]);
                }
            }
        }
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
                store(sums + r * kPanelOutputs + (first + c) * kLanes, low[r][c]);
                store(sums + r * kPanelOutputs + (first + c) * kLanes + kBlock, high[r][c]);
            }
        }
    }
}

template <int ROWS, class W>
static void multiply_tile(int64_t rows, const W* weight, const float* const* x, float* sums, int64_t inputs) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return multiply_tile<ROWS - 1>(rows, weight, x, sums, inputs);
    }
    // A single row is bound by memory: all columns at once, so that the panel is read as one stream.
    multiply_rows<ROWS, ROWS == 1 ? kPanelColumns : kTileColumns>(weight, x, sums, inputs);
}

template <class W>
static void multiply_pairs(const GroupedCall& call, int64_t expert, int64_t panel, int64_t start, int64_t end) {
    const int64_t panel_elements = call.inputs * kPanelOutputs;
    const W* weight = vector_of<const W>(*call.weight) + (expert * call.num_panels + panel) * panel_elements;
    const int64_t width = smaller(kPanelOutputs, call.outputs - panel * kPanelOutputs);
    for (int64_t first = start; first < end; first += kTileRows) {
        const int64_t rows = smaller(kTileRows, end - first);
        const float* x[kTileRows];
        alignas(64) float sums[kTileRows * kPanelOutputs];
        for (int64_t r = 0; r < rows; ++r) {
            x[r] = row_of_pair<const float>(*call.x, first + r, call.chosen, call.inputs);
        }
        multiply_tile<kTileRows>(rows, weight, x, sums, call.inputs);
        for (int64_t r = 0; r < rows; ++r) {
            float* y = row_of_pair<float>(*call.y, first + r, call.chosen, call.outputs) + panel * kPanelOutputs;
            for (int64_t i = 0; i < width; i += kBlock) {
                store_block(y + i, load_block(sums + r * kPanelOutputs + i), width - i);
            }
        }
    }
}

// An item is a panel of an expert that has rows. There are no more such experts than rows, however many there could be.
static int64_t count_grouped_items(const Call& opaque, const Step& step) {
    const GroupedCall call(opaque);
    return smaller(call.num_experts, step.num_rows * call.chosen) * call.num_panels;
}

static void run_grouped_item(const Call& opaque, const Step&, int64_t item) {
    const GroupedCall call(opaque);
    int64_t before = item / call.num_panels;  // experts with rows that come before this item's
    int64_t start = 0;
    for (int64_t expert = 0; expert < call.num_experts; start = call.ends[expert++]) {
        const int64_t end = call.ends[expert];
        if (end == start || before-- > 0) continue;
        const int64_t panel = item % call.num_panels;
        if (call.weight->dtype == DType::bfloat16) return multiply_pairs<BFloat16>(call, expert, panel, start, end);
        return multiply_pairs<float>(call, expert, panel, start, end);
    }
}

// x, places, weights, y · width, chosen
static void unpermute_row(const Call& call, const Step&, int64_t row) {
    const int32_t* places = row_of<const int32_t>(call.operands[1], row);
    const float* weights = row_of<const float>(call.operands[2], row);
    float* y = row_of<float>(call.operands[3], row);
    const int64_t width = call.integers[0];
    const int64_t chosen = call.integers[1];
    for (int64_t i = 0; i < width; i += kBlock) {
        Block sum = broadcast_block(0.0f);
        for (int64_t c = 0; c < chosen; ++c) {
            const float* part = row_of_pair<const float>(call.operands[0], places[c], chosen, width) + i;
            sum = fma(broadcast_block(weights[c]), load_block(part, width - i), sum);
        }
        store_block(y + i, sum, width - i);
    }
}

const Kernel moe_permute = {count_experts, permute_expert};
const Kernel grouped_linear = {count_grouped_items, run_grouped_item};
const Kernel moe_unpermute = {count_row_items, run_row_item<unpermute_row>};

}  // namespace tv::TV_TARGET
