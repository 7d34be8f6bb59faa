#include "distribution.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tv {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr int64_t kStretch = 16;  // groups: one sum over all of them would be a chain in which each waits for the last

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Distribution::Distribution(const SamplePasses& passes, int64_t size)
    : passes_(passes), size_(size), largest_(ceil_div(size, kSampleGroup)), sums_(largest_.size()),
      stretch_sums_(ceil_div(sums_.size(), kStretch)) {}

bool Distribution::survey(const float* row, const float* of_panels) {
    row_ = row;
    if (of_panels == nullptr) passes_.survey(row, size_, largest_.data());
    else pair_up(of_panels);
    return find_max();
}

// A group is two panels, the last of them perhaps one.
void Distribution::pair_up(const float* of_panels) {
    const size_t num_pairs = ceil_div(size_, kPanelOutputs) / 2;
    for (size_t group = 0; group < num_pairs; ++group) {
        largest_[group] = std::max(of_panels[2 * group], of_panels[2 * group + 1]);
    }
    if (num_pairs < largest_.size()) largest_.back() = of_panels[2 * num_pairs];
}

// What is no number ranks with +inf.
bool Distribution::find_max() {
    max_ = passes_.largest(largest_.data(), static_cast<int64_t>(largest_.size()));
    return std::isfinite(max_);
}

bool Distribution::changed(const std::vector<std::pair<int32_t, float>>& before) {
    for (const auto& [token, logit] : before) {
        const int64_t group = token / kSampleGroup, first = group * kSampleGroup;
        float& largest = largest_[group];
        if (!(row_[token] < largest)) largest = row_[token];
        else if (!(logit < largest)) largest = passes_.largest(row_ + first, std::min(size_ - first, kSampleGroup));
    }
    return find_max();
}

Place Distribution::first() const {
    const int64_t group = std::find(largest_.begin(), largest_.end(), max_) - largest_.begin();
    return {max_, std::find(row_ + group * kSampleGroup, row_ + size_, max_) - row_};
}

std::vector<Place>& Distribution::likeliest(int64_t count) {
    const float least = reached_by(count);
    places_.clear();
    for (size_t group = 0; group < largest_.size(); ++group) {
        if (largest_[group] < least) continue;
        const int64_t first = static_cast<int64_t>(group) * kSampleGroup;
        for (uint64_t found = passes_.find_from(row_ + first, size_ - first, least); found != 0; found &= found - 1) {
            const int64_t token = first + __builtin_ctzll(found);
            places_.push_back({row_[token], token});
        }
    }
    if (static_cast<int64_t>(places_.size()) > count) {
        std::nth_element(places_.begin(), places_.begin() + count, places_.end());
        places_.resize(count);
    }
    return places_;
}

// A logit that the largest of at least `count` groups reach, and of not many more: it is looked for below the largest of
// all, ever further and then back between the last two. To find the one of that rank would take ten times as long.
float Distribution::reached_by(int64_t count) const {
    const int64_t num_groups = static_cast<int64_t>(largest_.size());
    if (count >= num_groups) return -kInfinity;
    const auto num_reaching = [&](float least) {
        int64_t found = 0;
        for (int64_t first = 0; first < num_groups; first += kSampleGroup) {
            found += __builtin_popcountll(passes_.find_from(&largest_[first], num_groups - first, least));
        }
        return found;
    };
    float depth = 1.0f, step = 1.0f;
    while (num_reaching(max_ - depth) < count) depth += step *= 2;
    for (int i = 0; i < 4; ++i) {
        step /= 2;
        if (num_reaching(max_ - (depth - step)) >= count) depth -= step;
    }
    return max_ - depth;
}

void Distribution::weigh(float sharpness, const Place& end) {
    sharpness_ = sharpness;
    keep_before(end);
}

void Distribution::keep_before(const Place& end) {
    end_ = end;
    // Of tokens as likely as the end, those of the groups before its own are kept, and of that some.
    const int64_t num_all = static_cast<int64_t>(largest_.size());
    const int64_t own = std::min(end.token / kSampleGroup, num_all);
    sum_groups(0, own, end.logit);
    if (own < num_all) {
        float kept[kSampleGroup];
        for (int64_t i = 0, token = own * kSampleGroup; i < kSampleGroup; ++i, ++token) {
            kept[i] = token < size_ && Place{row_[token], token} < end ? row_[token] : -kInfinity;
        }
        passes_.sum_from(kept, kSampleGroup, &largest_[own], max_, sharpness_, -kInfinity, &sums_[own]);
        sum_groups(own + 1, num_all, std::nextafter(end.logit, kInfinity));
    }
    add_up();
}

void Distribution::keep_above(double share) {
    const Place end = {static_cast<float>(max_ + std::log(share) / sharpness_), size_};
    if (end < end_) keep_before(end);
}

bool Distribution::is_less_before(const Place& end, double weight) const {
    const int64_t num_groups = static_cast<int64_t>(largest_.size());
    double most = 0.0;
    for (int64_t first = 0; first < num_groups; first += kSampleGroup) {
        uint64_t reaching = passes_.find_from(&largest_[first], num_groups - first, end.logit);
        for (; reaching != 0; reaching &= reaching - 1) most += sums_[first + __builtin_ctzll(reaching)];
    }
    return most < weight;
}

void Distribution::sum_groups(int64_t first, int64_t end, float least) {
    const int64_t from = first * kSampleGroup, to = std::min(end * kSampleGroup, size_);
    if (from < to) passes_.sum_from(row_ + from, to - from, &largest_[first], max_, sharpness_, least, &sums_[first]);
}

void Distribution::add_up() {
    const int64_t num_groups = static_cast<int64_t>(sums_.size());
    total_ = 0.0;
    for (int64_t first = 0; first < num_groups; first += kStretch) {
        double sum = 0.0;
        for (int64_t group = first; group < std::min(first + kStretch, num_groups); ++group) sum += sums_[group];
        total_ += stretch_sums_[first / kStretch] = sum;
    }
}

// Of weights, the first with which their sum comes above a share of it; the share becomes what is left, of that one.
// A share is at most 1 - 2⁻⁵³, so its product with a sum always rounds to less than that, and there is such a weight.
template <class Number>
static int64_t take_share(const Number* weights, int64_t count, double& share) {
    constexpr double most = 1 - 0x1p-53;
    double total = 0.0, before = 0.0;
    for (int64_t i = 0; i < count; ++i) total += weights[i];
    const double target = share * total;
    int64_t i = 0;
    for (; before + weights[i] <= target; ++i) before += weights[i];
    share = std::min((target - before) / weights[i], most);
    return i;
}

Place Distribution::drawn(double share) const {
    const int64_t num_groups = static_cast<int64_t>(sums_.size());
    const int64_t stretch = take_share(stretch_sums_.data(), static_cast<int64_t>(stretch_sums_.size()), share);
    const int64_t from = stretch * kStretch;
    const int64_t group = from + take_share(&sums_[from], std::min(kStretch, num_groups - from), share);
    const int64_t first = group * kSampleGroup, n = std::min(size_ - first, kSampleGroup);
    float weights[kSampleGroup];
    passes_.weigh_group(row_ + first, n, largest_[group], sharpness_, weights);
    for (int64_t i = 0; i < n; ++i) {
        if (!(Place{row_[first + i], first + i} < end_)) weights[i] = 0.0f;
    }
    const int64_t token = first + take_share(weights, n, share);
    return {row_[token], token};
}

}  // namespace tv
