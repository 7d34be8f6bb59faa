#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "candidates.h"
#include "nucleus.h"

namespace tv {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

static int64_t num_groups(int64_t size) { return (size + kSampleGroup - 1) / kSampleGroup; }

double uniform(uint64_t seed, uint64_t choice, uint64_t position) {
    uint64_t counter[4] = {position + 1, position + 1 == 0, 0, 0};
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
    const SamplePasses& passes;
    const int64_t size;  // of the vocabulary
    std::vector<float> largest, unedited_largest, sums, group_spare;  // by group
    std::vector<double> sums_up_to;                 // likewise: with those of the groups before
    std::vector<float> weights;                     // by token, of whole groups
    std::vector<int32_t> uses;                      // by token: 0 between rows
    std::vector<std::pair<int32_t, float>> edits;
    std::vector<char> is_edited;  // by group
    Candidates candidates, spare;
    Nucleus nucleus;

    Desk(const SamplePasses& of_target, int64_t vocab_size)
        : passes(of_target), size(vocab_size), largest(num_groups(size)), sums(num_groups(size)),
          sums_up_to(num_groups(size)), weights(num_groups(size) * kSampleGroup), is_edited(num_groups(size)),
          nucleus(passes) {}

    Choice choose(float* row, const Row& asked) {
        const Draw& draw = *asked.draw;
        Choice choice;
        const float max = passes.survey(row, size, largest.data());
        if (!std::isfinite(max)) return choice;
        edit(row, asked);
        const float edited_max = edits.empty() ? max : surveyed_again(row);
        // A bias may have made a logit infinite; a ban, nothing finite of the row.
        if (std::isfinite(edited_max)) {
            choice.token = draw.temperature == 0 ? first_of(row, edited_max) : sampled(row, edited_max, asked);
        }
        if (!edits.empty()) undo_edits(row);
        if (choice.token && draw.num_logprobs) add_logprobs(row, max, *draw.num_logprobs, choice);
        return choice;
    }

    // As `survey`, where only some groups have changed.
    float surveyed_again(const float* row) {
        unedited_largest = largest;
        bool is_number = true;
        for (size_t group = 0; group < largest.size(); ++group) {
            if (!is_edited[group]) continue;
            const int64_t first = static_cast<int64_t>(group) * kSampleGroup;
            is_number &= !std::isnan(passes.survey(row + first, std::min(size - first, kSampleGroup), &largest[group]));
        }
        return is_number ? *std::max_element(largest.begin(), largest.end()) : std::nanf("");
    }

    void undo_edits(float* row) {
        // Back to front: a token that was changed twice has its first value in the end.
        for (; !edits.empty(); edits.pop_back()) row[edits.back().first] = edits.back().second;
        largest.swap(unedited_largest);
        std::fill(is_edited.begin(), is_edited.end(), 0);
    }

    int32_t first_of(const float* row, float value) const {
        const int64_t group = std::find(largest.begin(), largest.end(), value) - largest.begin();
        return static_cast<int32_t>(std::find(row + group * kSampleGroup, row + size, value) - row);
    }

    void change(float* row, int32_t token, double value) {
        edits.emplace_back(token, row[token]);
        is_edited[token / kSampleGroup] = 1;
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

    int32_t sampled(const float* row, float max, const Row& asked) {
        const Draw& draw = *asked.draw;
        const double share = uniform(draw.seed, draw.choice, static_cast<uint64_t>(asked.num_tokens));
        // A temperature near 0 sends all but the likeliest to weight 0; the likeliest must not become 0 · infinity, in
        // powers of two neither.
        const float sharpness =
            static_cast<float>(std::min<double>(1 / draw.temperature, std::numeric_limits<float>::max() / 2));
        const bool has_top_k = draw.top_k < size;
        if (!has_top_k && draw.top_p == 1 && draw.min_p == 0) return from_all(row, max, sharpness, share);
        const float lowest = draw.min_p > 0 ? static_cast<float>(std::log(draw.min_p)) : -kInfinity;
        if (has_top_k) {
            gather(row, max, sharpness, (group_of_rank(draw.top_k) - max) * sharpness);
            keep_top_k(candidates, draw.top_k, spare);
            if (draw.top_p < 1) keep_nucleus(candidates, draw.top_p * weight_of(candidates), spare);
        } else if (draw.top_p < 1) {
            const double total = passes.weigh_row(row, size, max, sharpness, weights.data(), sums.data());
            const WeighedRow weighed = {row, size, max, sharpness, largest, weights};
            const auto last = nucleus.find(weighed, draw.top_p * total, total, sums);
            if (last && (last->logit - max) * sharpness >= lowest) return from_nucleus(row, *last, share);
            if (draw.min_p == 0) return from_all(row, max, sharpness, share);
            gather(row, max, sharpness, lowest);
        } else {
            gather(row, max, sharpness, lowest);
        }
        if (draw.min_p > 0) {
            keep_if(candidates, [&](const Candidate& each) { return (each.logit - max) * sharpness >= lowest; });
        }
        return drawn(candidates, share);
    }

    // First the group in which the sum of weights passes the target, then the token in it.
    int32_t from_all(const float* row, float max, float sharpness, double share) {
        passes.weigh_row(row, size, max, sharpness, weights.data(), sums.data());
        const Passed found = passed_group(share);
        return static_cast<int32_t>(found.first + passed(&weights[found.first], found.sum, found.target));
    }

    // As `from_all`, of the tokens that do not come after `last`: `sums` are of their weights, `weights` of all.
    int32_t from_nucleus(const float* row, const Candidate& last, double share) {
        const Passed found = passed_group(share);
        float own[kSampleGroup];
        for (int64_t i = 0; i < kSampleGroup; ++i) {
            const int64_t token = found.first + i;
            const Candidate each = {static_cast<int32_t>(token), token < size ? row[token] : -kInfinity, 0.0f};
            own[i] = last < each ? 0.0f : weights[token];
        }
        return static_cast<int32_t>(found.first + passed(own, found.sum, found.target));
    }

    // Where the sum of the groups' sums passes `target`, that share of them all: a group's first token, and the sum of
    // the groups before it.
    struct Passed {
        int64_t first;
        double sum, target;
    };
    Passed passed_group(double share) {
        double sum = 0.0;
        for (size_t group = 0; group < sums.size(); ++group) sums_up_to[group] = sum += sums[group];
        const double target = share * sum;
        const int64_t group = std::upper_bound(sums_up_to.begin(), sums_up_to.end(), target) - sums_up_to.begin();
        return {group * kSampleGroup, group == 0 ? 0.0 : sums_up_to[group - 1], target};
    }

    // Of weights one after the other, the place of the first whose sum with `sum` passes the target; or else of the last
    // that is positive: a group's own sum was folded in another order.
    static int64_t passed(const float* own, double sum, double target) {
        int64_t last = 0;
        for (int64_t i = 0; i < kSampleGroup; ++i) {
            if (own[i] > 0) last = i;
            sum += own[i];
            if (sum > target) break;
        }
        return last;
    }

    // A logit that at least `rank` tokens reach: the largest of the group that comes so many-th by its largest.
    float group_of_rank(int64_t rank) {
        if (rank > static_cast<int64_t>(largest.size())) return -kInfinity;
        group_spare = largest;
        const auto place = group_spare.begin() + (rank - 1);
        std::nth_element(group_spare.begin(), place, group_spare.end(), std::greater<float>());
        return *place;
    }

    // The tokens whose scaled logits reach `lowest`.
    void gather(const float* row, float max, float sharpness, float lowest) {
        candidates.clear();
        float weights[kSampleGroup];
        for (size_t group = 0; group < largest.size(); ++group) {
            if ((largest[group] - max) * sharpness < lowest) continue;
            const int64_t first = static_cast<int64_t>(group) * kSampleGroup;
            passes.weigh_group(row + first, size - first, max, sharpness, weights);
            const int64_t end = std::min(size - first, kSampleGroup);
            for (int64_t i = 0; i < end; ++i) {
                const float logit = row[first + i];
                if ((logit - max) * sharpness >= lowest) {
                    candidates.push_back({static_cast<int32_t>(first + i), logit, weights[i]});
                }
            }
        }
    }

    // Under the model's own distribution: the row as it was given.
    void add_logprobs(const float* row, float max, int64_t num_likeliest, Choice& choice) {
        const double log_total = std::log(passes.weigh_row(row, size, max, 1.0f, weights.data(), sums.data()));
        const auto logprob = [&](int32_t token) { return static_cast<double>(row[token]) - max - log_total; };
        choice.logprob = logprob(*choice.token);
        if (num_likeliest == 0) return;
        gather(row, max, 1.0f, group_of_rank(num_likeliest) - max);
        std::sort(candidates.begin(), candidates.end());
        if (static_cast<int64_t>(candidates.size()) > num_likeliest) candidates.resize(num_likeliest);
        for (const Candidate& each : candidates) choice.likeliest.emplace_back(each.token, logprob(each.token));
    }
};

Sampler::Sampler(Team& team, int64_t vocab_size, const std::string& target)
    : team_(team), passes_(*target_named(target).kernels->sample_passes), vocab_size_(vocab_size) {
    if (vocab_size < 1) throw std::invalid_argument("Sampler: vocab_size is " + std::to_string(vocab_size));
    for (int i = 0; i < team.num_threads(); ++i) desks_.push_back(std::make_unique<Desk>(passes_, vocab_size));
}

Sampler::~Sampler() = default;

void Sampler::choose(float* logits, int64_t stride, const std::vector<Row>& rows, std::vector<Choice>& choices) {
    struct Work {
        Sampler& sampler;
        float* logits;
        int64_t stride;
        const std::vector<Row>& rows;
        std::vector<Choice>& choices;
    };
    choices.resize(rows.size());
    Work work = {*this, logits, stride, rows, choices};
    const auto job = [](Team& team, int worker, void* context) {
        const Work& work = *static_cast<const Work*>(context);
        const int64_t num_rows = static_cast<int64_t>(work.rows.size());
        for (int64_t row = team.next_item(); row < num_rows; row = team.next_item()) {
            work.choices[row] = work.sampler.desks_[worker]->choose(work.logits + row * work.stride, work.rows[row]);
        }
    };
    team_.run(job, &work);
}

}  // namespace tv
