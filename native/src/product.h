// Rows times panels of weights: out = x · weightᵀ + bias, as linear and grouped_linear have it.
#pragma once

#include "target.h"

namespace tv::TV_TARGET {

// The most rows that go through their inputs together. Of several tiles' rows a copy is made, which costs a hundredth of
// what so many panels of outputs do.
constexpr int64_t kManyRows = 4 * kTileRows;
constexpr int64_t kManyPanels = 32;

struct Product {
    const Operand *x, *out;  // of float32, `parts` rows in each of theirs, side by side
    int64_t parts;
    const char* weight;  // panels in `dtype`, the address of the first
    DType dtype;
    const float* bias;  // null where there is none
    int64_t inputs, outputs;
    const Operand* largest = nullptr;  // [rows, panels], of one part: the largest output of each panel, where wanted
};

// Some rows times some panels: what an item computes. Outputs begin with a panel, and end with one or with all.
struct Part {
    int64_t first_row, end_row, first_output, end_output;

    int64_t num_rows() const { return end_row - first_row; }
    int64_t num_outputs() const { return end_output - first_output; }
};

void multiply(const Product& product, const Part& part);

// What a panel of so many inputs takes.
int64_t panel_bytes(DType dtype, int64_t inputs);

}  // namespace tv::TV_TARGET
