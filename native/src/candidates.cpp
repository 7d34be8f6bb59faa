#include "candidates.h"

#include <algorithm>
#include <limits>

namespace tv {

double weight_of(const Candidates& candidates) {
    double sum = 0.0;
    for (const Candidate& each : candidates) sum += each.weight;
    return sum;
}

// Those that do not come after `last` in the order of keeping.
static void keep_to(Candidates& candidates, const Candidate& last) {
    keep_if(candidates, [&](const Candidate& each) {
        return (each.logit > last.logit) | ((each.logit == last.logit) & (each.token <= last.token));
    });
}

void keep_top_k(Candidates& candidates, int64_t top_k, Candidates& spare) {
    if (static_cast<int64_t>(candidates.size()) <= top_k) return;
    spare = candidates;
    std::nth_element(spare.begin(), spare.begin() + (top_k - 1), spare.end());
    keep_to(candidates, spare[top_k - 1]);
}

void keep_nucleus(Candidates& candidates, double goal, Candidates& spare) {
    spare = candidates;
    if (const auto last = end_of_nucleus(spare, 0.0, goal)) keep_to(candidates, *last);
}

// The range of logits is cut into shelves, and all but one of them put aside, until few are left: sorting would cost
// more than all the rest.
std::optional<Candidate> end_of_nucleus(Candidates& open, double reached, double goal) {
    constexpr size_t few = 32;
    constexpr int num_shelves = 64;
    bool is_here = false;  // known from a sum in another order, which the last one may miss by a rounding
    while (open.size() > few) {
        double low = std::numeric_limits<float>::max(), high = -low;
        const auto height = [lowest = high](const Candidate& each) { return std::max<double>(each.logit, lowest); };
        for (const Candidate& each : open) {
            low = std::min(low, height(each));
            high = std::max(high, height(each));
        }
        if (low == high) break;
        const double shelves_per_logit = num_shelves / (high - low);
        const auto shelf_of = [=](const Candidate& each) {
            return std::min(static_cast<int>((high - height(each)) * shelves_per_logit), num_shelves - 1);
        };
        double shelf_weights[num_shelves] = {};
        for (const Candidate& each : open) shelf_weights[shelf_of(each)] += each.weight;
        int shelf = 0;
        while (shelf < num_shelves && reached + shelf_weights[shelf] < goal) reached += shelf_weights[shelf++];
        if (shelf == num_shelves) return std::nullopt;
        is_here = true;
        keep_if(open, [&](const Candidate& each) { return shelf_of(each) == shelf; });
    }
    if (!std::is_sorted(open.begin(), open.end())) std::sort(open.begin(), open.end());  // equals are in order
    for (const Candidate& each : open) {
        reached += each.weight;
        if (reached >= goal) return each;
    }
    return is_here ? std::optional(open.back()) : std::nullopt;
}

int32_t drawn(const Candidates& candidates, double share) {
    // The share is at most 1 - 2⁻⁵³, so its product with the total always rounds to less than the total, and the first
    // sum above it belongs to a token of positive weight.
    const double target = share * weight_of(candidates);
    double sum = 0.0;
    for (const Candidate& each : candidates) {
        sum += each.weight;
        if (sum > target) return each.token;
    }
    return candidates.back().token;
}

}  // namespace tv
