// What is kept and what is drawn of rows of many shapes: against a full sort in double precision.
#include <algorithm>
#include <functional>
#include <numeric>

#include "check.h"
#include "dispatch.h"
#include "distribution.h"
#include "suites.h"

namespace tv::test {

struct Shape {
    std::string name;
    std::function<double(Random&, int64_t token)> logit;
};

static std::vector<Shape> shapes() {
    const auto bell = [](Random& random) { return random.uniform() + random.uniform() + random.uniform(); };
    return {
        {"flat", [=](Random& random, int64_t) { return 2 * bell(random); }},
        {"steep", [=](Random& random, int64_t) { return 9 * bell(random); }},
        {"equal", [](Random&, int64_t) { return 3.0; }},
        {"in steps", [=](Random& random, int64_t) { return std::round(2 * bell(random)); }},
        {"falling", [=](Random& random, int64_t token) { return bell(random) - std::log1p(token); }},
        {"high in every other group", [=](Random& random, int64_t i) { return bell(random) + 6 * (i / 64 % 2); }},
        {"far apart", [=](Random& random, int64_t) { return 90 * bell(random); }},
        {"half of it masked", [=](Random& random, int64_t) { return random.below(2) ? -HUGE_VAL : bell(random); }},
        {"groups masked", [=](Random& random, int64_t i) { return i / 64 % 3 == 0 ? -HUGE_VAL : bell(random); }},
        {"one", [](Random&, int64_t token) { return token == 70 ? 40.0 : 0.0; }},
    };
}

// A row, what its tokens weigh, and their order: what anyone believes.
struct Truth {
    std::vector<float> row;
    std::vector<double> weights;
    std::vector<int64_t> order, ranks;

    Truth(std::vector<float> logits, double sharpness) : row(std::move(logits)), order(row.size()), ranks(row.size()) {
        const double max = *std::max_element(row.begin(), row.end());
        for (const float logit : row) weights.push_back(std::exp((logit - max) * sharpness));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return row[a] > row[b]; });
        for (size_t rank = 0; rank < order.size(); ++rank) ranks[order[rank]] = static_cast<int64_t>(rank);
    }

    int64_t size() const { return static_cast<int64_t>(row.size()); }
    Place place(int64_t rank) const { return {row[order[rank]], order[rank]}; }

    // Of the first `num_kept` in order: the sum of all weights, and of those of lower tokens than `token`.
    double sum(int64_t num_kept, int64_t token) const {
        double sum = 0.0;
        for (int64_t i = 0; i < token; ++i) sum += ranks[i] < num_kept ? weights[i] : 0.0;
        return sum;
    }
};

static void check_kept(const Distribution& found, const Truth& truth, int64_t num_kept, const std::string& name,
                       std::string& answers) {
    const double total = truth.sum(num_kept, truth.size()), slack = 1e-6 * total;
    check(std::abs(found.total() - total) <= slack, name + "total");
    const double sum = found.total();
    answers.append(reinterpret_cast<const char*>(&sum), sizeof sum);
    for (const double share : {0.0, 0.3, 0.95, 1 - 0x1p-53}) {
        const Place drawn = found.drawn(share);
        const double before = truth.sum(num_kept, drawn.token), after = before + truth.weights[drawn.token];
        check(truth.ranks[drawn.token] < num_kept && truth.weights[drawn.token] > 0 && drawn.logit == truth.row[drawn.token],
              name + "what is drawn is kept");
        check(before <= share * total + slack && share * total - slack <= after, name + "it is the share's");
        answers.append(reinterpret_cast<const char*>(&drawn.token), sizeof drawn.token);
    }
}

static std::vector<float> largest_of_panels(const std::vector<float>& row) {
    std::vector<float> largest;
    for (size_t first = 0; first < row.size(); first += kPanelOutputs) {
        const size_t end = std::min<size_t>(first + kPanelOutputs, row.size());
        largest.push_back(*std::max_element(row.begin() + first, row.begin() + end));
    }
    return largest;
}

// `of_panels`: as a head leaves them, or null.
static std::string check_row(const Target& target, const Truth& truth, const float* of_panels, float sharpness,
                             const std::string& name) {
    std::string answers;
    Distribution found(*target.kernels->sample_passes, truth.size());
    check(found.survey(truth.row.data(), of_panels), name + "is fit");
    check(found.max() == truth.place(0).logit, name + "max");
    for (const int64_t count : {int64_t{1}, int64_t{7}, int64_t{300}}) {
        std::vector<Place> likeliest = found.likeliest(count);
        std::sort(likeliest.begin(), likeliest.end());
        const int64_t num_kept = std::min(count, truth.size());
        bool is_right = static_cast<int64_t>(likeliest.size()) == num_kept;
        for (int64_t i = 0; is_right && i < num_kept; ++i) is_right = likeliest[i].token == truth.order[i];
        check(is_right && found.first().token == truth.order[0], name + "the likeliest");
        found.weigh(sharpness, {likeliest.back().logit, likeliest.back().token + 1});
        check_kept(found, truth, num_kept, name + "as surveyed, " + std::to_string(count) + ": ", answers);
    }
    found.weigh(sharpness, found.past_all());
    check_kept(found, truth, truth.size(), name + "all: ", answers);
    for (const int64_t parts : {2, 9, 1000}) {
        const int64_t num_kept = std::max<int64_t>(1, truth.size() / parts);
        if (num_kept == truth.size()) continue;
        found.keep_before(truth.place(num_kept));
        check_kept(found, truth, num_kept, name + "one in " + std::to_string(parts) + ": ", answers);
    }
    found.keep_before(truth.place(0));
    check(found.total() == 0, name + "nothing comes before the first");
    return answers;
}

// Logits that become others, some of them twice: what is known of the row is what is known of one that came so.
static void check_changed(Random& random, const std::vector<float>& row, const std::vector<float>& of_panels,
                          const std::string& name) {
    const int64_t size = static_cast<int64_t>(row.size());
    for (const int64_t num_changes : {1, 3, 60}) {
        std::vector<float> changed = row;
        std::vector<std::pair<int32_t, float>> before;
        for (int64_t i = 0; i < num_changes; ++i) {
            const int64_t likeliest = std::max_element(changed.begin(), changed.end()) - changed.begin();
            const int64_t token = random.below(3) == 0 ? likeliest : random.below(size);
            before.emplace_back(token, changed[token]);
            changed[token] = random.below(5) == 0 ? -HUGE_VALF : static_cast<float>(changed[token] + 4 * random.uniform());
        }
        for (const Target& target : supported_targets()) {
            Distribution found(*target.kernels->sample_passes, size), fresh(*target.kernels->sample_passes, size);
            std::vector<float> edited = row;
            found.survey(edited.data(), of_panels.data());
            edited = changed;
            const bool is_fit = fresh.survey(changed.data(), nullptr);
            check(found.changed(before) == is_fit, name + target.name + ": is fit as one that came so");
            if (!is_fit) continue;
            found.weigh(1.0f, found.past_all());
            fresh.weigh(1.0f, fresh.past_all());
            check(found.first().token == fresh.first().token && found.total() == fresh.total() &&
                      found.drawn(0.7).token == fresh.drawn(0.7).token,
                  name + target.name + ": changed, it is as one that came so");
        }
    }
}

void test_distribution(const Setting& setting) {
    Random random(20), of_changes(21);
    std::vector<int64_t> sizes = {1, 65, 3001};
    if (!setting.is_small) sizes.insert(sizes.end(), {2048, 32003});
    for (const Shape& shape : shapes()) {
        for (const int64_t size : sizes) {
            std::vector<float> row;
            for (int64_t i = 0; i < size; ++i) row.push_back(static_cast<float>(shape.logit(random, i)));
            if (*std::max_element(row.begin(), row.end()) == -HUGE_VALF) continue;
            const std::vector<float> of_panels = largest_of_panels(row);
            for (const float sharpness : {0.3f, 1.0f, 3.0f}) {
                const Truth truth(row, sharpness);
                const std::string name = "a row of " + std::to_string(size) + ", " + shape.name + ", on ";
                std::string first;
                for (const Target& target : supported_targets()) {
                    for (const float* given : {static_cast<const float*>(nullptr), of_panels.data()}) {
                        const std::string answers = check_row(target, truth, given, sharpness, name + target.name + ": ");
                        check(first.empty() || answers == first, name + target.name + ": as on the best target");
                        first = answers;
                    }
                }
                add_to_digest(first);
            }
            check_changed(of_changes, row, of_panels, "a row of " + std::to_string(size) + ", " + shape.name + ", ");
        }
    }
}

}  // namespace tv::test
