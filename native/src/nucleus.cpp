#include "nucleus.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tv {

// Groups with the largest logits are looked at whole: in a steep row a few tokens decide. Of the others one in so many.
constexpr int64_t kNumWholeGroups = 16;
constexpr int64_t kSampled = 16;
constexpr double kDeviations = 2;     // of what the sample says: outside, the pass over the row is made again
constexpr double kFewCandidates = 256;  // cost less than the pass that would make them fewer
constexpr double kDeepest = kNumSamplePlaces / static_cast<double>(kPlacesPerNat);  // nats: what lies below is one

// The logit so many nats below the likeliest; all lie between those at 0 and kDeepest.
static float logit_at(const WeighedRow& row, double depth) {
    if (depth <= 0) return std::numeric_limits<float>::infinity();
    const float lowest = std::numeric_limits<float>::lowest();  // -inf has no weight, and is what fills a group
    return depth < kDeepest ? std::max(row.max - static_cast<float>(depth) / row.sharpness, lowest) : lowest;
}

std::optional<Candidate> Nucleus::find(const WeighedRow& row, double goal, double total, std::vector<float>& sums) {
    Span span = likely_span(row, total - goal);
    if (span.num_tokens > kFewCandidates) span = narrowed(row, span, goal);
    // It only grows: sums in single precision that contradict each other by a rounding must not send it to and fro.
    for (;;) {
        const double reached = split(row, span, sums);
        spare_ = candidates_;
        const auto last = reached < goal ? end_of_nucleus(spare_, reached, goal) : std::nullopt;
        if (last) {
            add_up_to(*last, sums);
            return last;
        }
        const double width = 2 * (span.to - span.from);
        if (reached >= goal) {
            span.from -= width;
        } else if (span.to < kDeepest) {
            span.to += width;
        } else {
            return std::nullopt;
        }
    }
}

// From the lowest place up, as long as what lies `beyond` the nucleus may not be reached, and until it must be.
Nucleus::Span Nucleus::likely_span(const WeighedRow& row, double beyond) {
    const int64_t num_groups = static_cast<int64_t>(row.largest.size());
    const int whole = place_of_whole_groups(row);
    whole_weights_.assign(kNumSamplePlaces, 0.0f);
    sampled_weights_.assign(kNumSamplePlaces, 0.0f);
    int64_t num_others = 0, num_sampled = 0;
    for (int64_t group = 0; group < num_groups; ++group) {
        const bool is_whole = group_places_[group] < whole;
        if (!is_whole && num_others++ % kSampled != 0) continue;
        num_sampled += !is_whole;
        add_places(row, group, is_whole ? whole_weights_ : sampled_weights_);
    }
    const double factor = num_sampled == 0 ? 0.0 : static_cast<double>(num_others) / static_cast<double>(num_sampled);
    const double step = std::exp(1.0 / kPlacesPerNat);
    double weight = std::exp(-kDeepest);  // of a token at the place
    double below = 0.0, variance = 0.0;
    int first = 0, end = kNumSamplePlaces;
    double num_tokens = 0.0;
    for (int place = kNumSamplePlaces - 1; place > 0; --place, weight *= step) {
        const double standing_for = factor * sampled_weights_[place];
        below += whole_weights_[place] + standing_for;
        variance += factor * weight * standing_for;
        // One token of this place may be nowhere in the sample.
        const double unseen = factor * weight;
        const double doubt = kDeviations * kDeviations * (variance + unseen * unseen);
        const double left = beyond - below;
        if (left > 0 && left * left >= doubt) {
            end = place;
            continue;
        }
        num_tokens += (whole_weights_[place] + standing_for) / weight;
        if (left < 0 && left * left >= doubt) {
            first = place;
            break;
        }
    }
    const auto depth = [](int place) { return (place - 0.5) / kPlacesPerNat; };
    return {first == 0 ? 0.0 : depth(first), end == kNumSamplePlaces ? kDeepest : depth(end), num_tokens};
}

// What is left of a span when the weights down to its middle are summed: how many tokens the end is away from there,
// and how far that may be wrong.
Nucleus::Span Nucleus::narrowed(const WeighedRow& row, const Span& span, double goal) const {
    const double middle = (span.from + span.to) / 2, least = std::exp(-middle);
    const double reached =
        passes_.sum_from(row.weights.data(), static_cast<int64_t>(row.weights.size()), static_cast<float>(least));
    const double missing = (goal - reached) / least;
    // Where they lie is chance, and how many lie in a nat is what the sample says.
    const double doubt = 16 + 2 * std::sqrt(std::abs(missing)) + std::abs(missing) / 4;
    const double nats_per_token = (span.to - span.from) / span.num_tokens;
    return {middle + (missing - doubt) * nats_per_token, middle + (missing + doubt) * nats_per_token, 2 * doubt};
}

// To the sums of their groups, each of which is rounded once.
void Nucleus::add_up_to(const Candidate& last, std::vector<float>& sums) const {
    for (size_t i = 0; i < candidates_.size();) {
        const int32_t group = candidates_[i].token / kSampleGroup;
        double sum = sums[group];
        for (; i < candidates_.size() && candidates_[i].token / kSampleGroup == group; ++i) {
            sum += last < candidates_[i] ? 0.0f : candidates_[i].weight;
        }
        sums[group] = static_cast<float>(sum);
    }
}

// The place before which at most kNumWholeGroups groups have their largest logit.
int Nucleus::place_of_whole_groups(const WeighedRow& row) {
    const int64_t num_groups = static_cast<int64_t>(row.largest.size());
    group_places_.resize(row.largest.size() + kSampleGroup);
    for (int64_t first = 0; first < num_groups; first += kSampleGroup) {
        passes_.place_group(&row.largest[first], num_groups - first, row.max, row.sharpness, &group_places_[first]);
    }
    int32_t counts[kNumSamplePlaces] = {};
    for (int64_t group = 0; group < num_groups; ++group) ++counts[group_places_[group]];
    int64_t num_whole = 0;
    int place = 0;
    while (place < kNumSamplePlaces && num_whole + counts[place] <= kNumWholeGroups) num_whole += counts[place++];
    return place;
}

void Nucleus::add_places(const WeighedRow& row, int64_t group, std::vector<float>& place_weights) const {
    const int64_t first = group * kSampleGroup;
    uint16_t places[kSampleGroup];
    passes_.place_group(row.logits + first, row.size - first, row.max, row.sharpness, places);
    for (int64_t i = 0; i < kSampleGroup; ++i) place_weights[places[i]] += row.weights[first + i];
}

// `candidates_` become the tokens in the span, `sums` [groups] the weights of those above it; returns these together.
double Nucleus::split(const WeighedRow& row, const Span& span, std::vector<float>& sums) {
    open_.resize(row.largest.size());
    const double above = passes_.split_row(row.logits, row.size, row.weights.data(), logit_at(row, span.to),
                                           logit_at(row, span.from), sums.data(), open_.data());
    candidates_.clear();
    for (size_t group = 0; group < open_.size(); ++group) {
        for (uint64_t open = open_[group]; open != 0; open &= open - 1) {
            const int64_t token = static_cast<int64_t>(group) * kSampleGroup + __builtin_ctzll(open);
            candidates_.push_back({static_cast<int32_t>(token), row.logits[token], row.weights[token]});
        }
    }
    return above;
}

}  // namespace tv
