// An output is one chain of fma over its inputs, from +0, then the bias. Over float32 weights inputs come in order; over
// bfloat16 they are rounded to it and come in pairs, the second of two first, as the dot products of bfloat16 take them;
// over int8 a group of inputs is such a chain, and the output one over groups in order, each times its scale. The same
// for one row and for many, on every target: chains may be stored and taken up again, never split otherwise.
#include "product.h"

#include "largest.h"
#include "panels.h"

namespace tv::TV_TARGET {

// Elements of x that a tile of twelve rows has at once, so that they stay in L1: what all tiles read of a panel
// meanwhile, their x and the sums stay in L2. A tile of fewer rows has as much memory, and more elements.
// Padding keeps rows of x, and of sums, from falling into the same cache set.
constexpr int64_t kDepth = 320;
constexpr int64_t kPadding = 16;
constexpr int64_t kTileElements = kTileRows * (kDepth + kPadding);
constexpr int64_t kNumSums = kManyRows * (kManyPanels * kPanelOutputs + kPadding);

// From one row of a tile's x to the next.
constexpr int64_t x_stride(int64_t rows) { return kTileElements / rows; }

// How rows share the memory that there is: as tiles of about as many rows each, since one of a few waits for its own
// sums. They go through `depth` inputs before the next have their turn, which begin with a group; and each row has sums
// of so many outputs.
struct Blocking {
    int64_t num_rows, num_tiles, depth, outputs, sum_stride;

    Blocking(int64_t rows, int64_t inputs, int64_t element_inputs)
        : num_rows(rows), num_tiles(ceil_div(rows, kTileRows)),
          outputs((kNumSums / rows - kPadding) / kPanelOutputs * kPanelOutputs), sum_stride(outputs + kPadding) {
        const int64_t elements = x_stride(ceil_div(rows, num_tiles)) - kPadding;
        const int64_t deepest = elements * element_inputs / kGroupInputs * kGroupInputs;
        const int64_t num_blocks = ceil_div(inputs, deepest);
        depth = ceil_div(ceil_div(inputs, num_blocks), kGroupInputs) * kGroupInputs;
    }

    int64_t first_row(int64_t tile) const { return tile * num_rows / num_tiles; }
    int64_t rows_of(int64_t tile) const { return first_row(tile + 1) - first_row(tile); }
};
static_assert(kDepth % kGroupInputs == 0);

// Where a tile finds its x and its sums, one row after the other.
template <class Panel>
struct Tile {
    const typename Panel::Chain::Element* x;
    float* sums;
    int64_t sum_stride;
};

// What is fetched into L2 while a tile runs: the block of a panel that comes next, each tile an equal share of its
// bytes, so that memory has all the time that arithmetic takes. A block is too short for the hardware to notice in time
// that it is a stream (8 rows of a whole model, two threads of a Zen 4: 17.9 → 12.6 ms).
struct Fetch {
    const char* block;
    int64_t tile, turn_bytes;  // which share; of a turn
};

// Chains of ROWS × COLUMNS · lanes outputs, from `column` of the panel on, in so many turns. Weights are widened
// for every tile: made float32 once for many tiles they were slower (97 in place of 107 GFLOP/s for 48 rows on one core
// of a Zen 4), since the units that widen have nothing else to do and twice the bytes come from L2.
// `ahead` is fetched meanwhile, so many bytes with each turn. A few rows are faster without.
template <int ROWS, int COLUMNS, class Panel>
TV_INLINE void run_tile(const Panel& panel, const char* ahead, int64_t ahead_bytes, int column, const Tile<Panel>& tile,
                        int64_t turns) {
    using Chain = typename Panel::Chain;
    Vec sums[ROWS][COLUMNS];
    const auto stored = [&](int r, int c) { return tile.sums + r * tile.sum_stride + (column + c) * kLanes; };
    TV_UNROLL for (int r = 0; r < ROWS; ++r) {
        TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = Panel::kIsScaled ? Vec{} : load(stored(r, c));
    }
    for (int64_t turn = 0; turn < turns; ++turn) {
        if constexpr (ROWS >= Panel::kFetchRows) {
            for (int64_t line = 0; line < ahead_bytes; line += 64) prefetch(ahead + turn * ahead_bytes + line);
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

// A block of a panel, its inputs from `input` on.
template <int ROWS, class Panel>
static void run_panel(int64_t rows, const char* stored, const Fetch& fetch, int64_t input, int64_t depth,
                      const Tile<Panel>& tile) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return run_panel<ROWS - 1, Panel>(rows, stored, fetch, input, depth, tile);
    }
    using Chain = typename Panel::Chain;
    // As much of a panel's width as there are registers for, so that it is read as one stream.
    constexpr int columns = ROWS * kPanelColumns <= kAccumulators ? kPanelColumns : kTileColumns;
    constexpr int64_t times = kPanelColumns / columns;
    const int64_t ahead_bytes = ceil_div(fetch.turn_bytes, times);
    for (int64_t from = 0; from < depth; from += Panel::kRun) {
        const Panel panel(stored, input + from);
        const int64_t turns = ceil_div(smaller(Panel::kRun, depth - from), Chain::kInputs * Chain::kTurn);
        for (int column = 0; column < kPanelColumns; column += columns) {
            const Tile<Panel> of_run = {tile.x + from / Chain::kInputs, tile.sums, tile.sum_stride};
            const int64_t share = fetch.tile * times + column / columns;
            const char* ahead = fetch.block + Panel::bytes(from) + share * turns * ahead_bytes;
            run_tile<ROWS, columns>(panel, ahead, ahead_bytes, column, of_run, turns);
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
        // Now that the row is in the first cache.
        if (product.largest == nullptr) continue;
        float* largest = row_of<float>(*product.largest, part.first_row + r) + part.first_output / kPanelOutputs;
        find_largest<kPanelOutputs>(out + part.first_output, width, largest);
    }
}

static void clear(const Part& part, float* sums, const Blocking& by) {
    const int64_t width = ceil_div(part.num_outputs(), kPanelOutputs) * kPanelOutputs;
    for (int64_t r = 0; r < part.num_rows(); ++r) {
        for (int64_t i = 0; i < width; i += kBlock) store_block(sums + r * by.sum_stride + i, broadcast_block(0.0f));
    }
}

// As many rows and outputs as `by` has room for. `goes_on`: the thread has the outputs after them next.
template <class Panel>
static void run_block(const Product& product, const Part& part, const Blocking& by, bool goes_on) {
    using Chain = typename Panel::Chain;
    alignas(64) float sums[kNumSums];
    alignas(64) typename Chain::Element x[kManyRows / kTileRows * kTileElements];
    const auto block_at = [&](int64_t output, int64_t input) {
        return product.weight + output / kPanelOutputs * Panel::bytes(product.inputs) + Panel::bytes(input);
    };
    const int64_t turn_bytes = ceil_div(Panel::kTurnBytes, by.num_tiles);
    clear(part, sums, by);
    for (int64_t k = 0; k < product.inputs; k += by.depth) {
        const int64_t depth = smaller(by.depth, product.inputs - k);
        for (int64_t tile = 0; tile < by.num_tiles; ++tile) {
            const int64_t first_row = part.first_row + by.first_row(tile);
            take_block<Chain>(product, first_row, by.rows_of(tile), k, depth, x + tile * kTileElements);
        }
        const bool is_end = k + depth == product.inputs;
        for (int64_t output = part.first_output; output < part.end_output; output += kPanelOutputs) {
            // At the end nothing is known to come: what is there already costs nothing to fetch.
            const char* next = block_at(output, k);
            if (output + kPanelOutputs < part.end_output) {
                next = block_at(output + kPanelOutputs, k);
            } else if (!is_end) {
                next = block_at(part.first_output, k + depth);
            } else if (goes_on) {
                next = block_at(part.end_output, 0);
            }
            for (int64_t tile = 0; tile < by.num_tiles; ++tile) {
                float* of_tile = sums + by.first_row(tile) * by.sum_stride + output - part.first_output;
                run_panel<kTileRows, Panel>(by.rows_of(tile), block_at(output, 0), {next, tile, turn_bytes}, k, depth,
                                            {x + tile * kTileElements, of_tile, by.sum_stride});
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
        const Blocking by(end_row - row, product.inputs, Panel::Chain::kInputs);
        for (int64_t output = part.first_output; output < part.end_output; output += by.outputs) {
            const int64_t end = smaller(output + by.outputs, part.end_output);
            run_block<Panel>(product, {row, end_row, output, end}, by, end < part.end_output);
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
