// out = x · weightᵀ + bias, the weight in panels: how the work becomes items.
#include "product.h"
#include "target.h"

namespace tv::TV_TARGET {

// x, weight, bias, out, largest · in, out
static Product product_of(const Call& call) {
    const Operand *x = call.operands, *weight = x + 1, *bias = x + 2, *out = x + 3, *largest = x + 4;
    return {x, out, 1, weight->address, weight->dtype, vector_of<const float>(*bias), call.integers[0], call.integers[1],
            largest->address == nullptr ? nullptr : largest};
}

// An item's panels are read as one stream, and every stream has to get going: so each thread has one of equal length,
// and more only of a large matrix, at most sixteen of a MiB of bfloat16 at least, which for several tiles are long enough
// to be worth taking the rows for. Where there are more rows than go through a panel together there are four items or
// more of each thread, and as many of one thread as of another.
constexpr int64_t kStreamWeights = 512 << 10;

struct Division {
    int64_t num_panels, num_panel_items, num_tiles, num_row_items, num_items;

    Division(const Product& product, const Step& step)
        : num_panels(ceil_div(product.outputs, kPanelOutputs)), num_tiles(ceil_div(step.num_rows, kTileRows)),
          num_row_items(ceil_div(step.num_rows, kManyRows)) {
        const int64_t threads = step.num_threads;
        const int64_t of_many = ceil_div(num_panels, kManyPanels);
        if (num_row_items > 1) {
            const int64_t even = ceil_div(num_row_items, threads) * threads;
            if (even <= smaller(2 * num_row_items, num_tiles)) num_row_items = even;
            num_panel_items = larger(of_many, ceil_div(4 * threads, num_row_items));
        } else {
            const int64_t streams = product.inputs * product.outputs / threads / kStreamWeights;
            num_panel_items = threads * between(1, num_tiles > 1 ? smaller(streams, of_many / threads) : streams, 16);
        }
        num_panel_items = smaller(num_panel_items, num_panels);
        num_items = num_row_items * num_panel_items;
    }

    // A thread's share of the items is of as few rows as can be, which it has in its cache from the operator before, if
    // it is a whole number of them. In a share neighbouring items have their panels in common, and shares begin with the
    // same, so that threads read the same weights at about the same time.
    Part part(const Product& product, const Step& step, int64_t item) const {
        const int64_t shares = num_row_items % step.num_threads == 0 ? step.num_threads : 1;
        const int64_t own_rows = num_row_items / shares, own_items = num_items / shares;
        const int64_t rows = item / own_items * own_rows + item % own_rows, panels = item % own_items / own_rows;
        const int64_t end_row = (rows + 1) * num_tiles / num_row_items * kTileRows;
        const int64_t end = (panels + 1) * num_panels / num_panel_items * kPanelOutputs;
        return {rows * num_tiles / num_row_items * kTileRows, smaller(end_row, step.num_rows),
                panels * num_panels / num_panel_items * kPanelOutputs, smaller(end, product.outputs)};
    }
};

static int64_t count_linear_items(const Call& call, const Step& step) {
    return Division(product_of(call), step).num_items;
}

static void run_linear_item(const Call& call, const Step& step, int64_t item) {
    const Product product = product_of(call);
    multiply(product, Division(product, step).part(product, step, item));
}

const Kernel linear = {count_linear_items, run_linear_item};

}  // namespace tv::TV_TARGET
