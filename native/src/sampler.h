// From rows of logits to tokens. The choice of a row is a function of the row, the tokens before it, and its draw: not
// of its neighbours, of the thread that makes it, or of the target.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dispatch.h"
#include "team.h"

namespace tv {

// How the tokens of one sequence are chosen. Whoever makes it has checked the ranges.
struct Draw {
    double temperature = 1.0;  // 0: the likeliest
    int64_t top_k = INT64_MAX;
    double top_p = 1.0;
    double min_p = 0.0;
    double repetition_penalty = 1.0;
    double presence_penalty = 0.0;
    double frequency_penalty = 0.0;
    std::vector<std::pair<int32_t, double>> logit_bias;
    std::vector<int32_t> stop_ids;  // banned before `min_tokens` are generated
    int64_t min_tokens = 0;
    int64_t num_prompt = 0;
    std::optional<int64_t> num_logprobs;  // log probabilities of the token and of so many of the likeliest
    uint64_t seed = 0;
    uint64_t choice = 0;

    // Does it ask which tokens came before, and not only how many?
    bool reads_tokens() const {
        return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
    }
    // Does it read a row, or what came before, and not only the largest logits?
    bool is_long() const { return temperature != 0 || num_logprobs || reads_tokens(); }
};

// Where a program leaves rows of logits, and beside them the largest of each of their panels: both of float32.
struct Head {
    Operand logits, largest;
    int64_t num_rows;
};

// A row: its draw, and all tokens before the one that is chosen.
struct Row {
    const Draw* draw;
    const int32_t* tokens;  // may be null where the draw does not read them
    int64_t num_tokens;
};

struct Choice {
    std::optional<int32_t> token;  // none for a row that has NaN or +inf, or nothing finite
    double logprob = 0.0;          // of the row as it was given; only where asked for, as `likeliest`
    std::vector<std::pair<int32_t, double>> likeliest;  // descending, of equals the lowest token first
};

class Sampler {
public:
    // Best target for an empty name. Rows that lie where `head` says are not surveyed again. Keeps `team`.
    // Throws std::invalid_argument for a target that is not supported, a vocabulary or a head that cannot be.
    Sampler(Team& team, int64_t vocab_size, const std::string& target, const std::optional<Head>& head = std::nullopt);
    ~Sampler();
    Sampler(const Sampler&) = delete;
    Sampler& operator=(const Sampler&) = delete;

    int64_t vocab_size() const { return vocab_size_; }

    // logits: [rows, vocab_size], `stride` floats from row to row. A row is changed and changed back.
    // Callers take turns.
    void choose(float* logits, int64_t stride, const std::vector<Row>& rows, std::vector<Choice>& choices);

private:
    struct Desk;  // what one thread works with
    struct Work;

    const float* largest_of(const float* row) const;

    Team& team_;
    const SamplePasses& passes_;
    const int64_t vocab_size_;
    const std::optional<Head> head_;
    std::vector<std::unique_ptr<Desk>> desks_;
};

// The number in [0, 1) that belongs to a place: Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", 2011) keyed by (seed, choice). The counter is position + 1, as NumPy's generator counts, and in its upper
// half the attempt.
double uniform(uint64_t seed, uint64_t choice, uint64_t position, uint64_t attempt);

}  // namespace tv
