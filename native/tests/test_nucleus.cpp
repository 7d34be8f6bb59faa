// Where a nucleus ends, in rows of many shapes: against a full sort.
#include <algorithm>
#include <functional>
#include <numeric>

#include "check.h"
#include "dispatch.h"
#include "nucleus.h"
#include "suites.h"

namespace tv::test {

struct Shape {
    std::string name;
    std::function<double(Random&, int64_t token)> logit;
};

// By token, and so by group of 64: what the sample sees of a row need not be what the row is.
static std::vector<Shape> shapes() {
    const auto bell = [](Random& random) { return random.uniform() + random.uniform() + random.uniform(); };
    return {
        {"flat", [=](Random& random, int64_t) { return 2 * bell(random); }},
        {"steep", [=](Random& random, int64_t) { return 9 * bell(random); }},
        {"equal", [](Random&, int64_t) { return 3.0; }},
        {"in steps", [=](Random& random, int64_t) { return std::round(2 * bell(random)); }},
        {"falling", [=](Random& random, int64_t token) { return bell(random) - std::log1p(token); }},
        {"high in one group of sixteen", [=](Random& random, int64_t i) { return bell(random) + (i / 64 % 16 == 0); }},
        {"low in one group of sixteen", [=](Random& random, int64_t i) { return bell(random) - 4 * (i / 64 % 16 == 5); }},
        {"high in every other group", [=](Random& random, int64_t i) { return bell(random) + 6 * (i / 64 % 2); }},
        {"a few far above", [=](Random& random, int64_t) { return random.below(300) == 0 ? 8 : bell(random); }},
        {"half of it masked", [=](Random& random, int64_t) { return random.below(2) ? -HUGE_VAL : bell(random); }},
        {"one", [](Random&, int64_t token) { return token == 70 ? 40.0 : 0.0; }},
    };
}

struct Found {
    std::optional<Candidate> last;
    double total, sum;  // of the row, and of the nucleus
};

static Found found(const Target& target, const std::vector<float>& row, float sharpness, double top_p,
                   std::vector<float>& weights) {
    const SamplePasses& passes = *target.kernels->sample_passes;
    const int64_t size = static_cast<int64_t>(row.size()), num_groups = (size + kSampleGroup - 1) / kSampleGroup;
    std::vector<float> largest(num_groups), sums(num_groups);
    weights.resize(num_groups * kSampleGroup);
    const float max = passes.survey(row.data(), size, largest.data());
    const double total = passes.weigh_row(row.data(), size, max, sharpness, weights.data(), sums.data());
    Nucleus nucleus(passes);
    const auto last = nucleus.find({row.data(), size, max, sharpness, largest, weights}, top_p * total, total, sums);
    return {last, total, last ? std::accumulate(sums.begin(), sums.end(), 0.0) : total};
}

static std::vector<int32_t> sorted_tokens(const std::vector<float>& row) {
    std::vector<int32_t> tokens(row.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    std::stable_sort(tokens.begin(), tokens.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    return tokens;
}

// Is `last` where the sorted sums reach the goal, but for what single precision leaves open?
static bool ends_there(const Found& found, const std::vector<int32_t>& sorted, const std::vector<float>& weights,
                       double top_p) {
    const double goal = top_p * found.total, slack = 1e-6 * found.total;
    double sum = 0.0;
    for (const int32_t token : sorted) {
        const double before = sum;
        sum += weights[token];
        if (found.last && token == found.last->token) {
            return before < goal + slack && sum > goal - slack && std::abs(sum - found.sum) < slack;
        }
    }
    return !found.last && goal > sum - slack;
}

void test_nucleus(const Setting& setting) {
    Random random(20);
    std::vector<int64_t> sizes = {1, 65, 3001};
    if (!setting.is_small) sizes.insert(sizes.end(), {2048, 32003, 49152});
    for (const Shape& shape : shapes()) {
        for (const int64_t size : sizes) {
            std::vector<float> row;
            for (int64_t i = 0; i < size; ++i) row.push_back(static_cast<float>(shape.logit(random, i)));
            if (*std::max_element(row.begin(), row.end()) == -HUGE_VALF) continue;
            const std::vector<int32_t> sorted = sorted_tokens(row);
            for (const float sharpness : {0.3f, 1.0f, 3.0f}) {
                for (const double top_p : {1e-9, 0.5, 0.95, 0.999, 1 - 1e-12}) {
                    const std::string name = "nucleus of " + std::to_string(top_p) + " of a row of " +
                                             std::to_string(size) + ", " + shape.name + ": ";
                    std::vector<float> weights;
                    std::optional<int32_t> first;
                    for (const Target& target : supported_targets()) {
                        const Found each = found(target, row, sharpness, top_p, weights);
                        const int32_t last = each.last ? each.last->token : -1;
                        check(ends_there(each, sorted, weights, top_p), name + "ends there on " + target.name);
                        check(last == first.value_or(last), name + "same end as on the best target");
                        if (!first) add_to_digest(std::to_string(last));
                        first = last;
                    }
                }
            }
        }
    }
}

}  // namespace tv::test
