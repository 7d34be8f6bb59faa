// The highest of a row and where they are: what the router and the sampler choose with. Of equal values the lower index
// comes first; a NaN ranks with +inf, so that it is seen and not skipped.
#include "block.h"
#include "target.h"

namespace tv::TV_TARGET {

TV_INLINE float rank_key(float value) { return value == value ? value : __builtin_inff(); }

// values, indices: [count], highest first. They are kept in order from the first value on, so that nearly every later
// one ends at a single comparison.
static void choose_highest(const float* row, int64_t size, float* values, int32_t* indices, int64_t count) {
    int64_t num_chosen = 0;
    for (int64_t i = 0; i < size; ++i) {
        const float key = rank_key(row[i]);
        if (num_chosen == count && !(key > rank_key(values[count - 1]))) continue;
        int64_t place = num_chosen < count ? num_chosen++ : count - 1;
        for (; place > 0 && key > rank_key(values[place - 1]); --place) {
            values[place] = values[place - 1];
            indices[place] = indices[place - 1];
        }
        values[place] = row[i];
        indices[place] = static_cast<int32_t>(i);
    }
}

// The sum over x [size] of `term` of each element, in sixteen lanes.
template <class Term>
static float sum_over(const float* x, int64_t size, Term term) {
    Block sum = broadcast_block(0.0f);
    for (int64_t i = 0; i < size; i += kBlock) {
        const int64_t rest = smaller(size - i, kBlock);
        sum = sum + first_lanes(term(load_block(x + i, rest)), rest, 0.0f);
    }
    return sum_of(sum);
}

template <class Change>
static void change_row(float* x, int64_t size, Change change) {
    for (int64_t i = 0; i < size; i += kBlock) store_block(x + i, change(load_block(x + i, size - i)), size - i);
}

// Chosen logits [count] become their shares: of all `logits` [size], or of the chosen alone.
static void take_softmax(const float* logits, int64_t size, float* chosen, int64_t count, bool is_renormalised) {
    const Block highest = broadcast_block(chosen[0]);
    const auto part = [&](const Block& x) { return exp(x - highest); };
    const float total = is_renormalised ? sum_over(chosen, count, part) : sum_over(logits, size, part);
    const Block whole = broadcast_block(total);
    change_row(chosen, count, [&](const Block& x) { return part(x) / whole; });
}

static void take_sigmoid(float* chosen, int64_t count, bool is_renormalised) {
    const Block zero = broadcast_block(0.0f);
    const Block one = broadcast_block(1.0f);
    change_row(chosen, count, [&](const Block& x) { return one / (one + exp(zero - x)); });
    if (!is_renormalised) return;
    // Where every score is zero there is nothing to share: the published models add this much and stay at zero.
    const Block total = broadcast_block(sum_over(chosen, count, [](const Block& x) { return x; }) + 1e-20f);
    change_row(chosen, count, [&](const Block& x) { return x / total; });
}

// logits, weights, experts · num_experts, chosen, is_sigmoid, is_renormalised
static void router_topk_row(const Call& call, const Step&, int64_t row) {
    const float* logits = row_of<const float>(call.operands[0], row);
    float* weights = row_of<float>(call.operands[1], row);
    const int64_t num_experts = call.integers[0];
    const int64_t count = call.integers[1];
    const bool is_renormalised = call.integers[3] != 0;
    choose_highest(logits, num_experts, weights, row_of<int32_t>(call.operands[2], row), count);
    if (call.integers[2] != 0) return take_sigmoid(weights, count, is_renormalised);
    take_softmax(logits, num_experts, weights, count, is_renormalised);
}

// logits, values, tokens · vocab, count
static void top_k_row(const Call& call, const Step&, int64_t row) {
    choose_highest(row_of<const float>(call.operands[0], row), call.integers[0], row_of<float>(call.operands[1], row),
                   row_of<int32_t>(call.operands[2], row), call.integers[1]);
}

static int64_t count_rows(const Call&, const Step& step) { return step.num_rows; }

const Kernel router_topk = {count_row_items, run_row_item<router_topk_row>};
const Kernel top_k = {count_rows, top_k_row};  // a row is a whole vocabulary: an item of its own

}  // namespace tv::TV_TARGET
