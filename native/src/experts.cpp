// Tokens to their experts and back. A pair is one choice of one token, in the order of tokens, then of choices; rows
// ordered by expert keep that order within an expert. A row's place and the order in which a token's parts are added
// follow from the routing alone; a row's product is that of a linear, whoever shares its expert.
#include "block.h"
#include "product.h"
#include "target.h"

namespace tv::TV_TARGET {

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
            float* to = row_of_part<float>(call.operands[2], place, chosen, width);
            for (int64_t i = 0; i < width; i += kBlock) store_block(to + i, load_block(from + i, width - i), width - i);
            row_of<int32_t>(call.operands[3], token)[c] = static_cast<int32_t>(place++);
        }
    }
    vector_of<int32_t>(call.operands[4])[expert] = static_cast<int32_t>(place);
}

// x, weight, ends, y · chosen, in, out, num_experts
struct GroupedCall {
    Product product;  // of the first expert
    const int32_t* ends;
    int64_t num_experts, num_panels, panels;

    // An item has a few panels, so that rows are copied once for all of them, where threads have items enough.
    GroupedCall(const Call& call, const Step& step)
        : product{call.operands, call.operands + 3, call.integers[0], call.operands[1].address, call.operands[1].dtype,
                  nullptr, call.integers[1], call.integers[2]},
          ends(vector_of<const int32_t>(call.operands[2])), num_experts(call.integers[3]),
          num_panels(ceil_div(product.outputs, kPanelOutputs)),
          panels(between(1, num_panels / (2 * step.num_threads), kManyPanels)) {}

    int64_t items_of_expert() const { return ceil_div(num_panels, panels); }
};

// An item is some panels of an expert that has rows. There are no more such experts than rows, however many there could
// be.
static int64_t count_grouped_items(const Call& opaque, const Step& step) {
    const GroupedCall call(opaque, step);
    return smaller(call.num_experts, step.num_rows * call.product.parts) * call.items_of_expert();
}

static void run_grouped_item(const Call& opaque, const Step& step, int64_t item) {
    const GroupedCall call(opaque, step);
    int64_t before = item / call.items_of_expert();  // experts with rows that come before this item's
    int64_t start = 0;
    for (int64_t expert = 0; expert < call.num_experts; start = call.ends[expert++]) {
        const int64_t end = call.ends[expert];
        if (end == start || before-- > 0) continue;
        Product product = call.product;
        product.weight += expert * call.num_panels * panel_bytes(product.dtype, product.inputs);
        const int64_t output = item % call.items_of_expert() * call.panels * kPanelOutputs;
        multiply(product, {start, end, output, smaller(output + call.panels * kPanelOutputs, product.outputs)});
        return;
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
            const float* part = row_of_part<const float>(call.operands[0], places[c], chosen, width) + i;
            sum = fma(broadcast_block(weights[c]), load_block(part, width - i), sum);
        }
        store_block(y + i, sum, width - i);
    }
}

const Kernel moe_permute = {count_experts, permute_expert};
const Kernel grouped_linear = {count_grouped_items, run_grouped_item};
const Kernel moe_unpermute = {count_row_items, run_row_item<unpermute_row>};

}  // namespace tv::TV_TARGET
