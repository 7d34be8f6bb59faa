// Tokens that may be drawn, ascending by token, so that sums are made in one order; and which of them are kept.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tv {

struct Candidate {
    int32_t token;
    float logit;
    float weight;

    // The order in which tokens are kept: the likeliest first, of equals the lowest.
    bool operator<(const Candidate& other) const {
        return logit != other.logit ? logit > other.logit : token < other.token;
    }
};

using Candidates = std::vector<Candidate>;

double weight_of(const Candidates& candidates);

// Which stay is as good as random to the processor: no branch depends on it.
template <class Stays>
void keep_if(Candidates& candidates, const Stays& stays) {
    size_t num_kept = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
        const Candidate each = candidates[i];
        candidates[num_kept] = each;
        num_kept += stays(each);
    }
    candidates.resize(num_kept);
}

// The `top_k` likeliest. `spare` is used up.
void keep_top_k(Candidates& candidates, int64_t top_k, Candidates& spare);

// The fewest of the likeliest whose weights reach `goal`. `spare` is used up.
void keep_nucleus(Candidates& candidates, double goal, Candidates& spare);

// The last of the fewest of the likeliest whose weights, together with what is `reached` without them, reach `goal`;
// none if all of them do not. `open` is used up.
std::optional<Candidate> end_of_nucleus(Candidates& open, double reached, double goal);

// The first whose sum with those before it is above that share, below 1, of them all.
int32_t drawn(const Candidates& candidates, double share);

}  // namespace tv
