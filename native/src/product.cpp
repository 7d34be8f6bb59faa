// An output is one chain of fma over its inputs, from +0, then the bias. Over float32 weights inputs come in order; over
// bfloat16 they are rounded to it and come in pairs, the second of two first, as the dot products of bfloat16 take them;
// over int8 a group of inputs is such a chain, and the output one over groups in order, each times its scale. The same
// for one row and for many, on every target: chains may be stored and taken up again, never split otherwise.
#include "product.h"

#include "panels.h"

namespace tv::TV_TARGET {

// Elements of x that a tile of rows runs through before the next tile has its turn, so that their block [12, 256] stays
// in L1; what tiles read of some panels meanwhile, and the sums, stay in L2. Where there is no next tile, a block is as
// deep as its memory holds, and panels are read as streams.
// Padding keeps rows of a block from falling into the same cache set, as rows of x itself often do.
constexpr int64_t kDepth = 256;
constexpr int64_t kPadding = 16;
constexpr int64_t kBlockElements = kTileRows * (kDepth + kPadding);
constexpr int64_t kNumSums = kManyRows * kManyPanels * kPanelOutputs;

// From one row of a block of x to the next.
constexpr int64_t x_stride(int64_t rows) { return kBlockElements / rows; }

// How rows share the memory of a block: they go through so many inputs at once, a multiple of kGroupInputs so that a
// block begins with a group, and each has sums of so many outputs.
struct Blocking {
    int64_t depth, sum_stride;

    Blocking(int64_t num_rows, int64_t element_inputs) {
        const int64_t elements = x_stride(smaller(num_rows, kTileRows)) - kPadding;
        depth = elements * element_inputs / kGroupInputs * kGroupInputs;
        const int64_t panels = num_rows <= kTileRows ? kNumSums / (num_rows * kPanelOutputs) : kManyPanels;
        sum_stride = panels * kPanelOutputs;
    }
};
static_assert(kDepth % kGroupInputs == 0);

// Where a tile finds its x and its sums, one row after the other.
template <class Panel>
struct Tile {
    const typename Panel::Chain::Element* x;
    float* sums;
    int64_t sum_stride;
};

// Chains of ROWS × COLUMNS · lanes outputs, from `column` of the panel on, in so many turns. Weights are widened
// for every tile: made float32 once for many tiles they were slower (97 in place of 107 GFLOP/s for 48 rows on one core
// of a Zen 4), since the units that widen have nothing else to do and twice the bytes come from L2.
// On the way it fetches into L2 what comes after: a block is too short for the hardware to notice in time that it is a
// stream (8 rows of a whole model, two threads of a Zen 4: 17.9 → 12.6 ms). A few rows are faster without.
template <int ROWS, int COLUMNS, class Panel>
TV_INLINE void run_tile(const Panel& panel, const char* next, int column, const Tile<Panel>& tile, int64_t turns) {
    using Chain = typename Panel::Chain;
    Vec sums[ROWS][COLUMNS];
    const auto stored = [&](int r, int c) { return tile.sums + r * tile.sum_stride + (column + c) * kLanes; };
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = Panel::kIsScaled ? Vec{} : load(stored(r, c));
    }
    for (int64_t turn = 0; turn < turns; ++turn) {
        if constexpr (ROWS >= Panel::kFetchRows) {
            constexpr int64_t share = Panel::kTurnBytes * COLUMNS / kPanelColumns;  // of a turn's bytes, these columns'
            const char* ahead = next + turn * Panel::kTurnBytes + share * column / COLUMNS;
            TV_UNROLL for (int64_t line = 0; line < share; line += 64) prefetch(ahead + line);
        }
        TV_UNROLL for (int i = Chain::kTurn - 1; i >= 0; --i) {
            typename Chain::Factor weight[COLUMNS];
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) weight[c] = panel.load(turn, i, column + c);
            TV_UNROLL for (int r = 0; r < ROWS; ++r) {
                const auto x = Chain::factor(tile.x[r * x_stride(ROWS) + turn * Chain::kTurn + i]);
                TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = Chain::add(weight[c], x, sums[r][c]);
            }
            // What was loaded of the turn is loaded again: kept, it would push sums out of their registers, which have
            // none to spare (96 rows on AVX2: 72 in place of 101 GFLOP/s).
            if constexpr (Panel::kIsOneLoad && Chain::kTurn > 1) {
                TV_UNROLL for (int r = 0; r < ROWS; ++r) {
                    TV_UNROLL for (int c = 0; c < COLUMNS; ++c) pin(sums[r][c]);
                }
            }
        }
    }
    TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            if constexpr (Panel::kIsScaled) sums[r][c] = fma(sums[r][c], panel.scales(column + c), load(stored(r, c)));
            store(stored(r, c), sums[r][c]);
        }
    }
}

// A block of a panel, its inputs from `input` on; `next` is the block that comes after it.
template <int ROWS, class Panel>
static void run_panel(int64_t rows, const char* stored, const char* next, int64_t input, int64_t depth,
                      const Tile<Panel>& tile) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return run_panel<ROWS - 1, Panel>(rows, stored, next, input, depth, tile);
    }
    using Chain = typename Panel::Chain;
    // As much of a panel's width as there are registers for, so that it is read as one stream.
    constexpr int columns = ROWS * kPanelColumns <= kAccumulators ? kPanelColumns : kTileColumns;
    for (int64_t from = 0; from < depth; from += Panel::kRun) {
        const Panel panel(stored, input + from);
        const int64_t turns = ceil_div(smaller(Panel::kRun, depth - from), Chain::kInputs * Chain::kTurn);
        for (int column = 0; column < kPanelColumns; column += columns) {
            const Tile<Panel> of_run = {tile.x + from / Chain::kInputs, tile.sums, tile.sum_stride};
            run_tile<ROWS, columns>(panel, next + Panel::bytes(from), column, of_run, turns);
        }
    }
}

// Rows [rows, depth] of x, from `input` on, as the chain takes them; what is missing of the last sixteen is zero.
template <class Chain>
static void take_block(const Product& product, int64_t first_row, int64_t rows, int64_t input, int64_t depth,
                       typename Chain::Element* x) {
    for (int64_t r = 0; r < rows; ++r) {
        const float* from = row_of_part<const float>(*product.x, first_row + r, product.parts, product.inputs) + input;
        typename Chain::Element* to = x + r * x_stride(rows);
        for (int64_t i = 0; i < depth; i += kBlock) {
            Chain::take(to + i / Chain::kInputs, load_block(from + i, depth - i));
        }
    }
}

// Only the real outputs: the last panel may reach past them.
static void write_sums(const Product& product, const Part& part, const float* sums, const Blocking& by) {
    const int64_t width = part.num_outputs();
    const float* bias = product.bias == nullptr ? nullptr : product.bias + part.first_output;
    for (int64_t r = 0; r < part.num_rows(); ++r) {
        float* out = row_of_part<float>(*product.out, part.first_row + r, product.parts, product.outputs);
        for (int64_t i = 0; i < width; i += kBlock) {
            Block sum = load_block(sums + r * by.sum_stride + i);
            if (bias != nullptr) sum = sum + load_block(bias + i, width - i);
            store_block(out + part.first_output + i, sum, width - i);
        }
    }
}

static void clear(const Part& part, float* sums, const Blocking& by) {
    const int64_t width = ceil_div(part.num_outputs(), kPanelOutputs) * kPanelOutputs;
    for (int64_t r = 0; r < part.num_rows(); ++r) {
        for (int64_t i = 0; i < width; i += kBlock) store_block(sums + r * by.sum_stride + i, broadcast_block(0.0f));
    }
}

// As many rows and outputs as `by` has room for.
template <class Panel>
static void run_block(const Product& product, const Part& part, const Blocking& by) {
    using Chain = typename Panel::Chain;
    alignas(64) float sums[kNumSums];
    alignas(64) typename Chain::Element x[kBlockElements];
    const auto panel_of = [&](int64_t output) {
        return product.weight + output / kPanelOutputs * Panel::bytes(product.inputs);
    };
    clear(part, sums, by);
    for (int64_t k = 0; k < product.inputs; k += by.depth) {
        const int64_t depth = smaller(by.depth, product.inputs - k);
        const int64_t next_k = k + depth < product.inputs ? k + depth : k;
        for (int64_t row = 0; row < part.num_rows(); row += kTileRows) {
            const int64_t rows = smaller(kTileRows, part.num_rows() - row);
            take_block<Chain>(product, part.first_row + row, rows, k, depth, x);
            for (int64_t output = part.first_output; output < part.end_output; output += kPanelOutputs) {
                const bool is_last = output + kPanelOutputs >= part.end_output;
                const char* next = is_last ? panel_of(part.first_output) + Panel::bytes(next_k)
                                           : panel_of(output + kPanelOutputs) + Panel::bytes(k);
                const Tile<Panel> tile = {x, sums + row * by.sum_stride + output - part.first_output, by.sum_stride};
                run_panel<kTileRows, Panel>(rows, panel_of(output), next, k, depth, tile);
            }
        }
    }
    write_sums(product, part, sums, by);
}

template <class Panel>
static void run_part(const Product& product, const Part& part) {
    const NoDenormals no_denormals(Panel::Chain::kFlushes);
    for (int64_t row = part.first_row; row < part.end_row; row += kManyRows) {
        const int64_t end_row = smaller(row + kManyRows, part.end_row);
        const Blocking by(end_row - row, Panel::Chain::kInputs);
        for (int64_t output = part.first_output; output < part.end_output; output += by.sum_stride) {
            run_block<Panel>(product, {row, end_row, output, smaller(output + by.sum_stride, part.end_output)}, by);
        }
    }
}

void multiply(const Product& product, const Part& part) {
    switch (product.dtype) {
        case DType::int8: return run_part<Int8Panel>(product, part);
        case DType::bfloat16: return run_part<HalfPanel>(product, part);
        default: return run_part<FloatPanel>(product, part);
    }
}

int64_t panel_bytes(DType dtype, int64_t inputs) {
    switch (dtype) {
        case DType::int8: return Int8Panel::bytes(inputs);
        case DType::bfloat16: return HalfPanel::bytes(inputs);
        default: return FloatPanel::bytes(inputs);
    }
}

}  // namespace tv::TV_TARGET
