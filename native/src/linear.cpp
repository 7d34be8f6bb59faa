// out = x · weightᵀ + bias, the weight in panels. An output is one chain of fma over its inputs in order, from +0; in
// int8 it is one chain over groups in order, of each group's scale times the group's own chain. The same for one row and
// for many, on every target: chains may be stored and taken up again, never split otherwise.
#include "block.h"
#include "panels.h"
#include "target.h"

namespace tv::TV_TARGET {

// Inputs that a tile of rows runs through before the next tile has its turn: a block of x [12, 256] and what a tile
// reads of a panel [256, 32] stay in a 32 KiB L1 together; the blocks of four panels and the sums of an item in any L2.
// A multiple of kGroupInputs, so that a block begins with a group.
constexpr int64_t kDepth = 256;
static_assert(kDepth % kGroupInputs == 0);
// The odd length keeps rows of the block of x from falling into the same cache set, as rows of x itself often do.
constexpr int64_t kBlockStride = kDepth + 16;
constexpr int64_t kManyPanels = 4;
constexpr int64_t kManyRows = 8 * kTileRows;
constexpr int64_t kSumStride = kManyPanels * kPanelOutputs;

// Chains of ROWS × COLUMNS · 2 · lanes outputs, from `column` of the panel on, over `run` of its inputs. Weights are
// widened for every tile: made float32 once for many tiles they were slower (97 in place of 107 GFLOP/s for 48 rows on
// one core of a Zen 4), since the units that widen have nothing else to do and twice the bytes come from L2.
// On the way it fetches into L2 what comes after: a block is too short for the hardware to notice in time that it is a
// stream (8 rows of a whole model, two threads of a Zen 4: 17.9 → 12.6 ms).
// x: [ROWS, run], kBlockStride apart; sums: [ROWS, 32], both halves of a panel, kSumStride apart.
template <int ROWS, int COLUMNS, class Panel>
TV_INLINE void run_tile(const Panel& panel, const char* next, int column, const float* x, float* sums, int64_t run) {
    Vec low[ROWS][COLUMNS];
    Vec high[ROWS][COLUMNS];
    const auto low_sum = [&](int r, int c) { return sums + r * kSumStride + (column + c) * kLanes; };
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
            low[r][c] = Panel::kIsScaled ? Vec{} : load(low_sum(r, c));
            high[r][c] = Panel::kIsScaled ? Vec{} : load(low_sum(r, c) + kBlock);
        }
    }
    for (int64_t k = 0; k < run; ++k) {
        Vec low_weight[COLUMNS];
        Vec high_weight[COLUMNS];
        prefetch(next + k * Panel::kInputBytes);
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) panel.load(k, column + c, low_weight[c], high_weight[c]);
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            const Vec element = broadcast(x[r * kBlockStride + k]);
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
                low[r][c] = fma(low_weight[c], element, low[r][c]);
                high[r][c] = fma(high_weight[c], element, high[r][c]);
            }
        }
    }
    TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
        Vec low_scale, high_scale;
        if constexpr (Panel::kIsScaled) panel.load_scales(column + c, low_scale, high_scale);
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            if constexpr (Panel::kIsScaled) {
                low[r][c] = fma(low[r][c], low_scale, load(low_sum(r, c)));
                high[r][c] = fma(high[r][c], high_scale, load(low_sum(r, c) + kBlock));
            }
            store(low_sum(r, c), low[r][c]);
            store(low_sum(r, c) + kBlock, high[r][c]);
        }
    }
}

// A block of a panel, its inputs from k on; `next` is the block that comes after it.
template <int ROWS, class Panel>
static void run_panel(int64_t rows, const char* stored, const char* next, int64_t k, const float* x, float* sums,
                      int64_t depth) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return run_panel<ROWS - 1, Panel>(rows, stored, next, k, x, sums, depth);
    }
    for (int64_t from = 0; from < depth; from += Panel::kRun) {
        const Panel panel(stored, k + from);
        const int64_t run = smaller(Panel::kRun, depth - from);
        for (int c = 0; c < kPanelColumns; c += kTileColumns) {
            run_tile<ROWS, kTileColumns>(panel, next + Panel::bytes(from), c, x + from, sums, run);
        }
    }
}

// One row by a panel and all its inputs. Panels side by side would be more chains, but more streams too, and memory is
// what one row waits for (56 MB, two threads of a Zen 4: 48 GB/s in pairs of panels, 57 one by one).
template <class Panel>
static void run_row(const char* stored, const float* x, float* sums, int64_t inputs) {
    Vec low[kPanelColumns] = {};
    Vec high[kPanelColumns] = {};
    for (int64_t from = 0; from < inputs; from += Panel::kRun) {
        const Panel panel(stored, from);
        const int64_t run = smaller(Panel::kRun, inputs - from);
        Vec low_run[kPanelColumns] = {};
        Vec high_run[kPanelColumns] = {};
        for (int64_t k = 0; k < run; ++k) {
            const Vec element = broadcast(x[from + k]);
            TV_UNROLL for (int c = 0; c < kPanelColumns; ++c) {
                Vec low_weight, high_weight;
                panel.load(k, c, low_weight, high_weight);
                low_run[c] = fma(low_weight, element, low_run[c]);
                high_run[c] = fma(high_weight, element, high_run[c]);
            }
        }
        TV_UNROLL for (int c = 0; c < kPanelColumns; ++c) {
            if constexpr (Panel::kIsScaled) {
                Vec low_scale, high_scale;
                panel.load_scales(c, low_scale, high_scale);
                low[c] = fma(low_run[c], low_scale, low[c]);
                high[c] = fma(high_run[c], high_scale, high[c]);
            } else {
                low[c] = low_run[c];  // there is one run
                high[c] = high_run[c];
            }
        }
    }
    TV_UNROLL for (int c = 0; c < kPanelColumns; ++c) {
        store(sums + c * kLanes, low[c]);
        store(sums + c * kLanes + kBlock, high[c]);
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

// How the work becomes items. An item's panels are read as one stream, and every stream has to get going: so each
// thread has one of equal length, and more only of a large matrix, at most sixteen of a MiB of bfloat16 at least. Where
// rows give enough items too, an item is four panels, so that a block of x is copied once for all of them.
constexpr int64_t kStreamWeights = 512 << 10;

struct Division {
    int64_t num_panels, num_panel_items, rows, num_row_items, num_items;

    Division(const LinearCall& call, const Step& step) : num_panels(ceil_div(call.outputs, kPanelOutputs)) {
        num_row_items = ceil_div(step.num_rows, kManyRows);
        const int64_t num_tiles = ceil_div(step.num_rows, kTileRows);
        rows = ceil_div(num_tiles, larger(1, num_row_items)) * kTileRows;
        const int64_t threads = step.num_threads;
        const int64_t of_thread = between(1, call.inputs * call.outputs / threads / kStreamWeights, 16);
        const int64_t of_four = ceil_div(num_panels, kManyPanels);
        const bool rows_suffice = step.num_rows > kTileRows && num_row_items * of_four >= 4 * threads;
        num_panel_items = rows_suffice ? of_four : smaller(threads * of_thread, num_panels);
        num_items = num_row_items * num_panel_items;
    }

    // Neighbouring items share their panels, so that threads read the same weights at about the same time.
    Part part(const LinearCall& call, const Step& step, int64_t item) const {
        const int64_t row = item % num_row_items * rows;
        const int64_t panel = item / num_row_items;
        const int64_t output = panel * num_panels / num_panel_items * kPanelOutputs;
        const int64_t end = (panel + 1) * num_panels / num_panel_items * kPanelOutputs;
        return {row, smaller(row + rows, step.num_rows), output, smaller(end, call.outputs)};
    }
};

static void copy_block(const LinearCall& call, int64_t first_row, int64_t rows, int64_t k, int64_t depth, float* x) {
    for (int64_t r = 0; r < rows; ++r) {
        const float* from = row_of<const float>(*call.x, first_row + r) + k;
        float* to = x + r * kBlockStride;
        for (int64_t i = 0; i < depth; i += kBlock) store_block(to + i, load_block(from + i, depth - i));
    }
}

// Only the real outputs: the last panel may reach past them. sums: [rows, outputs], kSumStride apart.
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

static void clear(const Part& part, float* sums) {
    const int64_t width = ceil_div(part.num_outputs(), kPanelOutputs) * kPanelOutputs;
    for (int64_t r = 0; r < part.num_rows(); ++r) {
        for (int64_t i = 0; i < width; i += kBlock) store_block(sums + r * kSumStride + i, broadcast_block(0.0f));
    }
}

template <class Panel>
static const char* panel_of(const LinearCall& call, int64_t output) {
    return call.weight->address + output / kPanelOutputs * Panel::bytes(call.inputs);
}

template <class Panel>
static void run_one_row(const LinearCall& call, const Part& part) {
    const float* x = row_of<const float>(*call.x, part.first_row);
    alignas(64) float sums[kPanelOutputs];
    for (int64_t output = part.first_output; output < part.end_output; output += kPanelOutputs) {
        run_row<Panel>(panel_of<Panel>(call, output), x, sums, call.inputs);
        write_sums(call, {part.first_row, part.end_row, output, smaller(output + kPanelOutputs, part.end_output)}, sums);
    }
}

// Up to kManyRows rows by up to kManyPanels panels.
template <class Panel>
static void run_block(const LinearCall& call, const Part& part) {
    alignas(64) float sums[kManyRows * kSumStride];
    alignas(64) float x[kTileRows * kBlockStride];
    clear(part, sums);
    for (int64_t k = 0; k < call.inputs; k += kDepth) {
        const int64_t depth = smaller(kDepth, call.inputs - k);
        const int64_t next_k = k + depth < call.inputs ? k + depth : k;
        for (int64_t row = 0; row < part.num_rows(); row += kTileRows) {
            const int64_t rows = smaller(kTileRows, part.num_rows() - row);
            copy_block(call, part.first_row + row, rows, k, depth, x);
            for (int64_t output = part.first_output; output < part.end_output; output += kPanelOutputs) {
                float* of_panel = sums + row * kSumStride + output - part.first_output;
                const char* stored = panel_of<Panel>(call, output);
                const bool is_last = output + kPanelOutputs >= part.end_output;
                const char* next = is_last ? panel_of<Panel>(call, part.first_output) + Panel::bytes(next_k)
                                           : panel_of<Panel>(call, output + kPanelOutputs) + Panel::bytes(k);
                run_panel<kTileRows, Panel>(rows, stored, next, k, x, of_panel, depth);
            }
        }
    }
    write_sums(call, part, sums);
}

template <class Panel>
static void run_part(const LinearCall& call, const Part& part) {
    if (part.num_rows() == 1) return run_one_row<Panel>(call, part);
    for (int64_t output = part.first_output; output < part.end_output; output += kSumStride) {
        run_block<Panel>(call, {part.first_row, part.end_row, output, smaller(output + kSumStride, part.end_output)});
    }
}

static int64_t count_linear_items(const Call& call, const Step& step) {
    return Division(LinearCall(call), step).num_items;
}

static void run_linear_item(const Call& opaque, const Step& step, int64_t item) {
    const LinearCall call(opaque);
    const Part part = Division(call, step).part(call, step, item);
    switch (call.weight->dtype) {
        case DType::int8: return run_part<Int8Panel>(call, part);
        case DType::bfloat16: return run_part<HalfPanel>(call, part);
        default: return run_part<FloatPanel>(call, part);
    }
}

const Kernel linear = {count_linear_items, run_linear_item};

}  // namespace tv::TV_TARGET
