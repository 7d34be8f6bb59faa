// A row of logits as a distribution over its tokens. They stand in an order, the likeliest first; whatever is kept of
// them is a beginning of that order, so that one place in it says what. Nothing sorts the row, and nothing keeps a
// weight for each token: what is summed is kept for groups of 64, what is drawn weighs its own group again.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels.h"

namespace tv {

// A place in the order of tokens: the likeliest first, of equals the lowest.
struct Place {
    float logit;
    int64_t token;

    bool operator<(const Place& other) const {
        return logit != other.logit ? logit > other.logit : token < other.token;
    }
};

class Distribution {
public:
    Distribution(const SamplePasses& passes, int64_t size);

    // Takes a row [size], and reads it until it is given another. `of_panels`: the largest logit of each of its panels,
    // as its head left them; null where nobody has found them. False where it has NaN or +inf, or nothing finite.
    bool survey(const float* row, const float* of_panels);
    // Logits of the row are others now; these they were. False as of `survey`.
    bool changed(const std::vector<std::pair<int32_t, float>>& before);

    float max() const { return max_; }
    Place first() const;
    // The so many likeliest, in no order; all where there are fewer.
    std::vector<Place>& likeliest(int64_t count);

    // Past the place of every token.
    Place past_all() const { return {-HUGE_VALF, size_}; }
    // A token weighs exp((logit - max) · sharpness), and those before `end` are kept.
    void weigh(float sharpness, const Place& end);
    // From here on only those before `end` are. Ends that follow each other come ever earlier.
    void keep_before(const Place& end);
    // Only those whose weight is at least that share of the likeliest's.
    void keep_above(double share);
    // Do those before a place certainly weigh less? Told from whole groups, so it may say no where they do.
    bool is_less_before(const Place& end, double weight) const;
    double total() const { return total_; }  // the weight of what is kept
    // The token with which the sum of weights, in order of tokens, comes above that share, below 1, of the total.
    Place drawn(double share) const;

private:
    void pair_up(const float* of_panels);
    bool find_max();
    float reached_by(int64_t count) const;
    void sum_groups(int64_t first, int64_t end, float least);
    void add_up();

    const SamplePasses& passes_;
    const int64_t size_;
    const float* row_ = nullptr;
    float max_ = 0.0f, sharpness_ = 1.0f;
    double total_ = 0.0;
    Place end_ = {};
    std::vector<float> largest_, sums_;  // by group; the sums of what is kept of it
    std::vector<double> stretch_sums_;   // of so many groups together
    std::vector<Place> places_;
};

}  // namespace tv
