// An output is one chain of fma over its inputs, from +0, then the bias. Over float32 weights inputs come in order; over
// bfloat16 they are rounded to it and come in pairs, the second of two first, as the dot products of bfloat16 take them;
// over int8 a group of inputs is such a chain, and the output one over groups in order, each times its scale. The same
// for one row and for many, on every target: chains may be stored and taken up again, never split otherwise.
#include "product.h"

#include "largest.h"
#include "panels.h"

namespace tv::TV_TARGET {

// The elements of x that a tile of so many rows has at once. What all tiles have stays in L2, with the parts of two
// panels; what one reads again comes from there as fast as it computes. A tile of fewer rows has as much memory, and
// more elements. Padding keeps rows of x from falling into the same cache set.
constexpr int64_t kDepth = 1024;
constexpr int64_t kPadding = 16;
constexpr int64_t kTileElements = kTileRows * (kDepth + kPadding);

// From one row of a tile's x to the next.
constexpr int64_t x_stride(int64_t rows) { return kTileElements / rows; }

// How rows share the memory that there is: as tiles of about as many rows each, since one of a few waits for its own
// sums. They go through `depth` inputs before the next have their turn, which begin with a group.
struct Blocking {
    int64_t num_rows, num_tiles, depth;

    Blocking(int64_t rows, int64_t inputs, int64_t element_inputs)
        : num_rows(rows), num_tiles(ceil_div(rows, kTileRows)) {
        const int64_t elements = x_stride(ceil_div(rows, num_tiles)) - kPadding;
        const int64_t deepest = elements * element_inputs / kGroupInputs * kGroupInputs;
        const int64_t num_blocks = ceil_div(inputs, deepest);
        depth = ceil_div(ceil_div(inputs, num_blocks), kGroupInputs) * kGroupInputs;
    }

    int64_t first_row(int64_t tile) const { return tile * num_rows / num_tiles; }
    int64_t rows_of(int64_t tile) const { return first_row(tile + 1) - first_row(tile); }
};
static_assert(kDepth % kGroupInputs == 0);

// Where a tile finds its x, one row after the other, and where its outputs lie of each row: a chain that is not
// finished waits there. A chain that begins finds nothing, one that ends has its bias added, where there is one.
template <class Panel>
struct Tile {
    const typename Panel::Chain::Element* x;
    float* const* rows;
    int64_t output;
    bool begins;
    const float* bias;
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
TV_INLINE void run_turns(const Panel& panel, const char* ahead, int64_t ahead_bytes, int column,
                         const typename Panel::Chain::Element* of_x, int64_t turns, Vec (&sums)[ROWS][COLUMNS]) {
    using Chain = typename Panel::Chain;
    for (int64_t turn = 0; turn < turns; ++turn) {
        if constexpr (ROWS >= Panel::kFetchRows) {
            for (int64_t line = 0; line < ahead_bytes; line += 64) prefetch(ahead + turn * ahead_bytes + line);
        }
        TV_UNROLL for (int i = Chain::kTurn - 1; i >= 0; --i) {
            typename Chain::Factor weight[COLUMNS];
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) weight[c] = panel.load(turn, i, column + c);
            TV_UNROLL for (int r = 0; r < ROWS; ++r) {
                const auto x = Chain::factor(of_x[r * x_stride(ROWS) + turn * Chain::kTurn + i]);
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
}

// Chains of ROWS × COLUMNS · lanes outputs, through a block of a panel.
template <int ROWS, int COLUMNS, class Panel>
TV_INLINE void run_tile(const char* stored, int64_t input, int64_t depth, const Fetch& fetch, int column,
                        const Tile<Panel>& tile) {
    using Chain = typename Panel::Chain;
    constexpr int64_t kTimes = kPanelColumns / COLUMNS;
    const int64_t ahead_bytes = ceil_div(fetch.turn_bytes, kTimes);
    const int64_t share = fetch.tile * kTimes + column / COLUMNS;
    const auto place = [&](int r, int c) { return tile.rows[r] + tile.output + (column + c) * kLanes; };
    Vec sums[ROWS][COLUMNS] = {};
    if (tile.begins) {
        // So that they are there when they are written: many at once hold up what else is on its way (512 rows of 576
        // inputs, one core of a Zen 4: 211 → 223 GFLOP/s).
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) prefetch(place(r, c));
        }
    } else {
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = load(place(r, c));
        }
    }
    if constexpr (Panel::kIsScaled) {
        // There are registers for the chains of a group alone: the compiler is not to think of more (AVX2, 8 rows: 35 in
        // place of 71 GFLOP/s).
        alignas(64) float memory[ROWS * COLUMNS * kLanes];
        float* totals = memory;
        hide(totals);
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) store(totals + (r * COLUMNS + c) * kLanes, sums[r][c]);
        }
        Panel panel(stored, input);
        const char* next_group = fetch.block;
        for (int64_t from = 0; from < depth; from += Panel::kRun) {
            const int64_t turns = ceil_div(smaller(Panel::kRun, depth - from), Chain::kInputs * Chain::kTurn);
            // Of a group everything: with a line missing of each, a wait for it held up the turns of all others (8 rows, one
            // core of a Zen 4: 19 in place of 27 cycles for 64 weights, of which dot products take 16).
            if constexpr (ROWS >= Panel::kFetchRows) prefetch(next_group);
            const char* ahead = next_group + Panel::kScaleBytes + share * turns * ahead_bytes;
            Vec group[ROWS][COLUMNS] = {};
            run_turns(panel, ahead, ahead_bytes, column, tile.x + from / Chain::kInputs, turns, group);
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
                const Vec scales = panel.scales(column + c);
                TV_UNROLL for (int r = 0; r < ROWS; ++r) {
                    float* total = totals + (r * COLUMNS + c) * kLanes;
                    store(total, fma(group[r][c], scales, load(total)));
                }
            }
            panel.go_on();
            next_group += Panel::kGroupBytes;
        }
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            TV_UNROLL for (int c = 0; c < COLUMNS; ++c) sums[r][c] = load(totals + (r * COLUMNS + c) * kLanes);
        }
    } else {
        const int64_t turns = ceil_div(depth, Chain::kInputs * Chain::kTurn);
        const char* ahead = fetch.block + share * turns * ahead_bytes;
        run_turns(Panel(stored, input), ahead, ahead_bytes, column, tile.x, turns, sums);
    }
    TV_UNROLL for (int c = 0; c < COLUMNS; ++c) {
        const Vec bias = tile.bias == nullptr ? Vec{} : load(tile.bias + (column + c) * kLanes);
        TV_UNROLL for (int r = 0; r < ROWS; ++r) {
            store(place(r, c), tile.bias == nullptr ? sums[r][c] : sums[r][c] + bias);
        }
    }
}

// A block of a panel, its inputs from `input` on.
template <int ROWS, class Panel>
static void run_panel(int64_t rows, const char* stored, const Fetch& fetch, int64_t input, int64_t depth,
                      const Tile<Panel>& tile) {
    if constexpr (ROWS > 1) {
        // One number of rows is as likely as another. A compiler left to guess takes fewer for half as likely each time,
        // and few for so rare that it makes them short instead of fast (float32, 4 rows: 19 in place of 17 cycles).
        constexpr double of_fewer = (ROWS - 1.0) / ROWS;
        if (__builtin_expect_with_probability(rows < ROWS, true, of_fewer)) {
            return run_panel<ROWS - 1, Panel>(rows, stored, fetch, input, depth, tile);
        }
    }
    // As much of a panel's width as there are registers for, so that it is read as one stream. Without room for what is
    // loaded sums go to memory and back (AVX2, 3 rows of int8: 28 in place of 18 cycles for 64 weights).
    constexpr int held = Panel::kIsHeld;
    constexpr bool is_wide = (ROWS + held) * kPanelColumns <= kAccumulators + held * kTileColumns;
    constexpr int columns = is_wide ? kPanelColumns : kTileColumns;
    for (int column = 0; column < kPanelColumns; column += columns) {
        run_tile<ROWS, columns>(stored, input, depth, fetch, column, tile);
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

// What comes after a block of a panel: the same inputs of the next, then the next inputs of the first. At the end nothing
// is known to come, and what is there already costs nothing to fetch.
template <class Panel>
static const char* next_block(const Product& product, const Part& part, int64_t output, int64_t input, int64_t depth) {
    if (output + kPanelOutputs < part.end_output) {
        output += kPanelOutputs;
    } else if (input + depth < product.inputs) {
        output = part.first_output;
        input += depth;
    }
    return product.weight + output / kPanelOutputs * Panel::bytes(product.inputs) + Panel::bytes(input);
}

// What is left to do with the chains of a panel when they have ended. A last panel reaches past the outputs, and its
// chains are elsewhere, in `rest`.
static void finish_panel(const Product& product, const Part& part, int64_t output, float* const* rows,
                         const float (*rest)[kPanelOutputs]) {
    const int64_t width = smaller(kPanelOutputs, part.end_output - output);
    for (int64_t r = 0; r < part.num_rows(); ++r) {
        float* out = rows[r] + output;
        for (int64_t i = 0; width < kPanelOutputs && i < width; i += kBlock) {
            Block sum = load_block(rest[r] + i);
            if (product.bias != nullptr) sum = sum + load_block(product.bias + output + i, width - i);
            store_block(out + i, sum, width - i);
        }
        if (product.largest == nullptr) continue;
        float* largest = row_of<float>(*product.largest, part.first_row + r) + output / kPanelOutputs;
        find_largest<kPanelOutputs>(out, width, largest);
    }
}

// As many rows as there is room for.
template <class Panel>
static void run_rows(const Product& product, const Part& part) {
    using Chain = typename Panel::Chain;
    alignas(64) typename Chain::Element x[kManyRows / kTileRows * kTileElements];
    alignas(64) float rest[kManyRows][kPanelOutputs];
    float *rows[kManyRows], *rest_rows[kManyRows];
    for (int64_t r = 0; r < part.num_rows(); ++r) {
        rows[r] = row_of_part<float>(*product.out, part.first_row + r, product.parts, product.outputs);
        rest_rows[r] = rest[r];
    }
    const Blocking by(part.num_rows(), product.inputs, Chain::kInputs);
    const int64_t turn_bytes = ceil_div(Panel::kTurnBytes, by.num_tiles);
    for (int64_t k = 0; k < product.inputs; k += by.depth) {
        const int64_t depth = smaller(by.depth, product.inputs - k);
        const bool is_end = k + depth == product.inputs;
        for (int64_t tile = 0; tile < by.num_tiles; ++tile) {
            const int64_t first_row = part.first_row + by.first_row(tile);
            take_block<Chain>(product, first_row, by.rows_of(tile), k, depth, x + tile * kTileElements);
        }
        for (int64_t output = part.first_output; output < part.end_output; output += kPanelOutputs) {
            const bool is_whole = output + kPanelOutputs <= part.end_output;
            const bool is_biased = is_whole && is_end && product.bias != nullptr;
            const char* panel = product.weight + output / kPanelOutputs * Panel::bytes(product.inputs);
            const char* next = next_block<Panel>(product, part, output, k, depth);
            for (int64_t tile = 0; tile < by.num_tiles; ++tile) {
                float* const* of_tile = (is_whole ? rows : rest_rows) + by.first_row(tile);
                run_panel<kTileRows, Panel>(by.rows_of(tile), panel, {next, tile, turn_bytes}, k, depth,
                                            {x + tile * kTileElements, of_tile, is_whole ? output : 0, k == 0,
                                             is_biased ? product.bias + output : nullptr});
            }
            if (is_end) finish_panel(product, part, output, rows, rest);
        }
    }
}

template <class Panel>
static void run_part(const Product& product, const Part& part) {
    const NoDenormals no_denormals(Panel::Chain::kFlushes);
    for (int64_t row = part.first_row; row < part.end_row; row += kManyRows) {
        run_rows<Panel>(product, {row, smaller(row + kManyRows, part.end_row), part.first_output, part.end_output});
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
