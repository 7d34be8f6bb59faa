#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "distribution.h"

namespace tv {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double uniform(uint64_t seed, uint64_t choice, uint64_t position, uint64_t attempt) {
    uint64_t counter[4] = {position + 1, position + 1 == 0, attempt, 0};
    uint64_t key[2] = {seed, choice};
    for (int round = 0; round < 10; ++round) {
        const auto first = static_cast<unsigned __int128>(0xD2E7470EE14C6C93u) * counter[0];
        const auto second = static_cast<unsigned __int128>(0xCA5A826395121157u) * counter[2];
        const uint64_t mixed[4] = {static_cast<uint64_t>(second >> 64) ^ counter[1] ^ key[0],
                                   static_cast<uint64_t>(second),
                                   static_cast<uint64_t>(first >> 64) ^ counter[3] ^ key[1],
                                   static_cast<uint64_t>(first)};
        std::copy(mixed, mixed + 4, counter);
        key[0] += 0x9E3779B97F4A7C15u;
        key[1] += 0xBB67AE8584CAA73Bu;
    }
    return static_cast<double>(counter[0] >> 11) * 0x1p-53;
}

struct Sampler::Desk {
    const int64_t size;  // of the vocabulary
    std::vector<int32_t> uses;  // by token: 0 between rows
    std::vector<std::pair<int32_t, float>> edits;  // tokens, and the logits that they had
    Distribution distribution;

    Desk(const SamplePasses& passes, int64_t vocab_size) : size(vocab_size), distribution(passes, vocab_size) {}

    // `of_panels`: what its head has found, or null.
    Choice choose(float* row, const float* of_panels, const Row& asked) {
        const Draw& draw = *asked.draw;
        Choice choice;
        if (!distribution.survey(row, of_panels)) return choice;
        double log_total = 0.0;
        if (draw.num_logprobs) {
            distribution.weigh(1.0f, distribution.past_all());
            log_total = distribution.max() + std::log(distribution.total());
            add_likeliest(*draw.num_logprobs, log_total, choice);
        }
        edit(row, asked);
        if (edits.empty() || distribution.changed(edits)) {
            choice.token = static_cast<int32_t>(draw.temperature == 0 ? distribution.first().token : sampled(asked));
        }
        undo_edits(row);
        if (choice.token && draw.num_logprobs) choice.logprob = row[*choice.token] - log_total;
        return choice;
    }

    // Under the model's own distribution: the row as it was given.
    void add_likeliest(int64_t count, double log_total, Choice& choice) {
        if (count == 0) return;
        std::vector<Place>& found = distribution.likeliest(count);
        std::sort(found.begin(), found.end());
        for (const Place& each : found) {
            choice.likeliest.emplace_back(static_cast<int32_t>(each.token), each.logit - log_total);
        }
    }

    // Back to front: a token that was changed twice has its first value in the end.
    void undo_edits(float* row) {
        for (; !edits.empty(); edits.pop_back()) row[edits.back().first] = edits.back().second;
    }

    void change(float* row, int32_t token, double value) {
        edits.emplace_back(token, row[token]);
        row[token] = static_cast<float>(value);
    }

    // Penalties, then bias, then the ban on stopping early.
    void edit(float* row, const Row& asked) {
        const Draw& draw = *asked.draw;
        penalise(row, asked);
        for (const auto& [token, bias] : draw.logit_bias) change(row, token, row[token] + bias);
        if (asked.num_tokens - draw.num_prompt >= draw.min_tokens) return;
        for (const int32_t token : draw.stop_ids) change(row, token, -kInfinity);
    }

    // Repetition over prompt and output, as in Keskar et al. (arXiv:1909.05858); presence and frequency over output.
    void penalise(float* row, const Row& asked) {
        const Draw& draw = *asked.draw;
        if (!draw.reads_tokens()) return;
        const bool repeats = draw.repetition_penalty != 1;
        uses.resize(size);
        constexpr int32_t is_seen = 1, once = 2;
        const int64_t first = repeats ? 0 : draw.num_prompt;
        for (int64_t i = first; i < asked.num_tokens; ++i) {
            int32_t& use = uses[asked.tokens[i]];
            use = (use | is_seen) + (i < draw.num_prompt ? 0 : once);
        }
        for (int64_t i = first; i < asked.num_tokens; ++i) {
            const int32_t token = asked.tokens[i];
            if (uses[token] == 0) continue;  // penalised already
            const int32_t count = uses[token] / once;
            uses[token] = 0;
            double logit = row[token];
            if (repeats) logit = logit > 0 ? logit / draw.repetition_penalty : logit * draw.repetition_penalty;
            if (count > 0) logit = logit - draw.frequency_penalty * count - draw.presence_penalty;
            change(row, token, logit);
        }
    }

    // Top-k and min-p keep what comes before a place in the order of the likeliest. So does top-p, but finding its place
    // would take far more than asking of a token whether it comes before it. So tokens are drawn until one does; each
    // that does not is an end of what the next is drawn from. What this draws has the same distribution. (FlashInfer
    // does so on GPUs: https://flashinfer.ai/2025/03/10/sampling.html.)
    int64_t sampled(const Row& asked) {
        const Draw& draw = *asked.draw;
        // A temperature near 0 sends all but the likeliest to weight 0; the likeliest must not become 0 · infinity, in
        // powers of two neither.
        const float sharpness =
            static_cast<float>(std::min<double>(1 / draw.temperature, std::numeric_limits<float>::max() / 2));
        Place end = distribution.past_all();
        if (draw.top_k < size) {
            const std::vector<Place>& found = distribution.likeliest(draw.top_k);
            end = *std::max_element(found.begin(), found.end());
            ++end.token;
        }
        distribution.weigh(sharpness, end);
        const double goal = draw.top_p * distribution.total();
        if (draw.min_p > 0) distribution.keep_above(draw.min_p);
        for (uint64_t attempt = 0;; ++attempt) {
            const double share = uniform(draw.seed, draw.choice, static_cast<uint64_t>(asked.num_tokens), attempt);
            const Place found = distribution.drawn(share);
            if (draw.top_p == 1 || distribution.is_less_before(found, goal)) return found.token;
            distribution.keep_before(found);
            if (distribution.total() < goal) return found.token;
        }
    }
};

Sampler::Sampler(Team& team, int64_t vocab_size, const std::string& target, const std::optional<Head>& head)
    : team_(team), passes_(*target_named(target).kernels->sample_passes), vocab_size_(vocab_size), head_(head) {
    if (vocab_size < 1) throw std::invalid_argument("Sampler: vocab_size is " + std::to_string(vocab_size));
    if (head && head->logits.stride < 4 * vocab_size) {
        throw std::invalid_argument("Sampler: the rows of head are " + std::to_string(head->logits.stride) +
                                    " bytes apart, and " + std::to_string(vocab_size) + " logits take more");
    }
    for (int i = 0; i < team.num_threads(); ++i) desks_.push_back(std::make_unique<Desk>(passes_, vocab_size));
}

Sampler::~Sampler() = default;

// Told by where the row lies: a copy of it has nothing beside it.
const float* Sampler::largest_of(const float* row) const {
    if (!head_) return nullptr;
    const auto& [logits, largest, num_rows] = *head_;
    const int64_t offset = reinterpret_cast<intptr_t>(row) - reinterpret_cast<intptr_t>(logits.address);
    if (offset < 0 || offset % logits.stride != 0 || offset / logits.stride >= num_rows) return nullptr;
    return reinterpret_cast<const float*>(largest.address + offset / logits.stride * largest.stride);
}

// Rows that are to be chosen from, and where the choices go.
struct Sampler::Work {
    Sampler& sampler;
    float* logits;
    int64_t stride;
    const std::vector<Row>& rows;
    std::vector<Choice>& choices;

    int64_t num_rows() const { return static_cast<int64_t>(rows.size()); }
    float* row(int64_t i) const { return logits + i * stride; }
    bool is_long(int64_t i) const { return rows[i].draw->is_long() || sampler.largest_of(row(i)) == nullptr; }
    void take(int64_t i, int desk) const {
        choices[i] = sampler.desks_[desk]->choose(row(i), sampler.largest_of(row(i)), rows[i]);
    }
};

void Sampler::choose(float* logits, int64_t stride, const std::vector<Row>& rows, std::vector<Choice>& choices) {
    choices.resize(rows.size());
    Work work = {*this, logits, stride, rows, choices};
    int64_t num_long = 0;
    for (int64_t i = 0; i < work.num_rows(); ++i) num_long += work.is_long(i);
    if (num_long <= 1) {  // which takes less time than the team does to wake
        const StandardFloats floats;
        for (int64_t i = 0; i < work.num_rows(); ++i) work.take(i, 0);
        return;
    }
    const auto job = [](Team& team, int worker, void* context) {
        const Work& work = *static_cast<const Work*>(context);
        Team::Items items(team, worker, work.num_rows());
        for (int64_t i = items.next(); i < work.num_rows(); i = items.next()) work.take(i, worker);
    };
    team_.run(job, &work);
}

}  // namespace tv
