// Where the nucleus of a whole row ends. A flat row has most of the vocabulary in it, so that nothing may be sorted or
// gathered but a few hundred tokens: a sample of the row says about where the end is, a pass over its weights how far
// that is off, and the last one whether it was found.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "candidates.h"
#include "kernels.h"

namespace tv {

// A row of logits and what was found of it, by token or by group of kSampleGroup.
struct WeighedRow {
    const float* logits;
    int64_t size;
    float max, sharpness;
    const std::vector<float>& largest;  // [groups]
    const std::vector<float>& weights;  // [groups · 64]
};

class Nucleus {
public:
    explicit Nucleus(const SamplePasses& passes) : passes_(passes) {}

    // The last token of the fewest of the likeliest whose weights reach `goal`, of a `total` of the row; none where
    // that takes all of it. `sums` [groups] becomes what each group has of them, where there is such a token.
    std::optional<Candidate> find(const WeighedRow& row, double goal, double total, std::vector<float>& sums);

private:
    // Where the nucleus ends: scaled logits so far below the likeliest, in nats.
    struct Span {
        double from, to;
        double num_tokens;  // about so many lie in it
    };
    Span likely_span(const WeighedRow& row, double beyond);
    Span narrowed(const WeighedRow& row, const Span& span, double goal) const;
    int place_of_whole_groups(const WeighedRow& row);
    void add_places(const WeighedRow& row, int64_t group, std::vector<float>& place_weights) const;
    double split(const WeighedRow& row, const Span& span, std::vector<float>& sums);
    void add_up_to(const Candidate& last, std::vector<float>& sums) const;

    const SamplePasses& passes_;
    std::vector<uint16_t> group_places_;  // of each group's largest
    // By place: of groups that are looked at for themselves, and of those that stand for others.
    std::vector<float> whole_weights_, sampled_weights_;
    std::vector<uint64_t> open_;     // by group: which tokens lie in the span
    Candidates candidates_, spare_;  // those tokens
};

}  // namespace tv
