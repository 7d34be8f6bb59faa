// out = x · weightᵀ + bias, the weight in panels. An output is one chain of fma over its inputs in order, from +0:
// the same for one row and for many, on every target. Chains may be stored and taken up again, never split.
#include "block.h"
#include "target.h"

namespace tv::TV_TARGET {

// Inputs that a tile of rows runs through before the next tile has its turn: a block of x [12, 256] and the block of a
// panel [256, 32] stay in a 32 KiB L1 together; the blocks of four panels and the sums of an item in any L2.
constexpr int64_t kDepth = 256;
// The odd length keeps rows of the block of x from falling into the same cache set, as rows of x itself often do.
constexpr int64_t kBlockStride = kDepth + 16;
constexpr int64_t kManyPanels = 4;
constexpr int64_t kManyRows = 8 * kTileRows;
constexpr int64_t kSumStride = kManyPanels * kPanelOutputs;

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

// Continues the chains of ROWS × COLUMNS · 2 · lanes outputs by `depth` inputs.
// x: [ROWS, depth], kBlockStride apart; weight: [depth, 32], from this tile's first column on; sums: [ROWS, 32], both
// halves of a panel, kSumStride apart.
template <int ROWS, int COLUMNS, class W>
TV_INLINE void run_tile(const W* weight, const float* x, float* sums, int64_t depth) {
    Vec low[ROWS][COLUMNS];
    Vec high[ROWS][COLUMNS];
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
            low[r][c] = load(sums + r * kSumStride + c * kLanes);
            high[r][c] = load(sums + r * kSumStride + c * kLanes + kBlock);
        }
    }
    for (int64_t k = 0; k < depth; ++k) {
        Vec low_weight[COLUMNS];
        Vec high_weight[COLUMNS];
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
            load_pair(weight + k * kPanelOutputs, c, low_weight[c], high_weight[c]);
        }
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            const Vec element = broadcast(x[r * kBlockStride + k]);
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
                low[r][c] = fma(low_weight[c], element, low[r][c]);
                high[r][c] = fma(high_weight[c], element, high[r][c]);
            }
        }
    }
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
            store(sums + r * kSumStride + c * kLanes, low[r][c]);
            store(sums + r * kSumStride + c * kLanes + kBlock, high[r][c]);
        }
    }
}

template <int ROWS, class W>
static void run_panel(int64_t rows, const W* weight, const float* x, float* sums, int64_t depth) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return run_panel<ROWS - 1>(rows, weight, x, sums, depth);
    }
    // A single row is bound by memory: all columns at once, so that the panel is read as one stream.
    constexpr int columns = ROWS == 1 ? kPanelColumns : kTileColumns;
    for (int c = 0; c < kPanelColumns; c += columns) {
        const W* from_column = weight + c * kLanes * 4 / static_cast<int>(sizeof(W));  // a pair word is 4 bytes
        run_tile<ROWS, columns>(from_column, x, sums + c * kLanes, depth);
    }
}

// x, weight, bias, out · in, out
struct LinearCall {
    const Operand *x, *weight, *bias, *out;
    int64_t inputs, outputs;

    explicit LinearCall(const Call& call)
        : x(call.operands), weight(call.operands + 1), bias(call.operands + 2), out(call.operands + 3),
          inputs(call.integers[0]), outputs(call.integers[1]) {}
};

// Some rows times some panels: what an item computes.
struct Part {
    int64_t first_row, end_row, first_output, end_output;

    int64_t num_rows() const { return end_row - first_row; }
    int64_t num_outputs() const { return end_output - first_output; }
};

// An item is a few panels times some rows: one panel while all rows fit a tile, since then the weights are the work.
struct Division {
    int64_t outputs, num_row_items, num_items;

    Division(const LinearCall& call, int64_t num_rows)
        : outputs(kPanelOutputs * (num_rows <= kTileRows ? 1 : kManyPanels)),
          num_row_items(ceil_div(num_rows, kManyRows)), num_items(num_row_items * ceil_div(call.outputs, outputs)) {}

    // Neighbouring items share their panels, so that threads read the same weights at about the same time.
    Part part(const LinearCall& call, int64_t num_rows, int64_t item) const {
        const int64_t row = item % num_row_items * kManyRows;
        const int64_t output = item / num_row_items * outputs;
        return {row, smaller(row + kManyRows, num_rows), output, smaller(output + outputs, call.outputs)};
    }
};

template <class W>
static void run_panels(const LinearCall& call, const Part& part, int64_t rows, const float* x, float* sums, int64_t k,
                       int64_t depth) {
    for (int64_t output = part.first_output; output < part.end_output; output += kPanelOutputs) {
        const W* weight = vector_of<const W>(*call.weight) + output * call.inputs + k * kPanelOutputs;
        run_panel<kTileRows>(rows, weight, x, sums + output - part.first_output, depth);
    }
}

static void copy_block(const LinearCall& call, int64_t first_row, int64_t rows, int64_t k, int64_t depth, float* x) {
    for (int64_t r = 0; r < rows; ++r) {
        const float* from = row_of<const float>(*call.x, first_row + r) + k;
        float* to = x + r * kBlockStride;
        for (int64_t i = 0; i < depth; i += kBlock) store_block(to + i, load_block(from + i, depth - i));
    }
}

// Only the real outputs: the last panel may reach past them.
static void write_sums(const LinearCall& call, const Part& part, const float* sums) {
    const int64_t width = part.num_outputs();
    const bool has_bias = call.bias->address != nullptr;
    const float* bias = has_bias ? vector_of<const float>(*call.bias) + part.first_output : nullptr;
    for (int64_t r = 0; r < part.num_rows(); ++r) {
        float* out = row_of<float>(*call.out, part.first_row + r) + part.first_output;
        for (int64_t i = 0; i < width; i += kBlock) {
            Block sum = load_block(sums + r * kSumStride + i);
            if (has_bias) sum = sum + load_block(bias + i, width - i);
            store_block(out + i, sum, width - i);
        }
    }
}

template <class W>
static void run_part(const LinearCall& call, const Part& part) {
    alignas(64) float sums[kManyRows * kSumStride];
    const Block zero = broadcast_block(0.0f);
    for (int64_t r = 0; r < part.num_rows(); ++r) {
        for (int64_t i = 0; i < part.num_outputs(); i += kPanelOutputs) {
            store_block(sums + r * kSumStride + i, zero);
            store_block(sums + r * kSumStride + i + kBlock, zero);
        }
    }
    if (part.num_rows() == 1) {
        run_panels<W>(call, part, 1, row_of<const float>(*call.x, part.first_row), sums, 0, call.inputs);
        return write_sums(call, part, sums);
    }
    alignas(64) float x[kTileRows * kBlockStride];
    for (int64_t k = 0; k < call.inputs; k += kDepth) {
        const int64_t depth = smaller(kDepth, call.inputs - k);
        for (int64_t row = part.first_row; row < part.end_row; row += kTileRows) {
            const int64_t rows = smaller(kTileRows, part.end_row - row);
            copy_block(call, row, rows, k, depth, x);
            run_panels<W>(call, part, rows, x, sums + (row - part.first_row) * kSumStride, k, depth);
        }
    }
    write_sums(call, part, sums);
}

static int64_t count_linear_items(const Call& call, const Step& step) {
    return Division(LinearCall(call), step.num_rows).num_items;
}

static void run_linear_item(const Call& opaque, const Step& step, int64_t item) {
    const LinearCall call(opaque);
    const Part part = Division(call, step.num_rows).part(call, step.num_rows, item);
    if (call.weight->dtype == DType::bfloat16) return run_part<BFloat16>(call, part);
    run_part<float>(call, part);
}

const Kernel linear = {count_linear_items, run_linear_item};

}  // namespace tv::TV_TARGET
