// One choice of tokens from the same rows of logits, of which a head has found what is largest, on one thread, for
// counting its instructions:
//   fixed_choice TARGET greedy|top-p|all NUM_ROWS
#include <algorithm>
#include <cstdlib>

#include "check.h"
#include "sampler.h"

namespace tv::test {

constexpr int64_t kVocab = 49152, kPrompt = 128;

static Draw draw_named(const std::string& name) {
    Draw draw;
    draw.temperature = name == "greedy" ? 0.0 : 0.8;
    if (name == "greedy") return draw;
    draw.top_p = 0.95;
    if (name == "top-p") return draw;
    draw.top_k = 50;
    draw.repetition_penalty = 1.1;
    draw.num_logprobs = 1;
    draw.num_prompt = kPrompt;
    return draw;
}

// Rows as models have them: a bell for most tokens, and a few above it.
static std::vector<float> some_logits(Random& random, int64_t num_rows) {
    std::vector<float> logits;
    for (int64_t i = 0; i < num_rows * kVocab; ++i) {
        const double bell = random.uniform() + random.uniform() + random.uniform() + random.uniform();
        logits.push_back(static_cast<float>(2.5 * bell + (random.below(2000) == 0 ? 8 + 3 * random.uniform() : 0)));
    }
    return logits;
}

static std::vector<float> largest_of_panels(const std::vector<float>& logits) {
    std::vector<float> largest;
    for (size_t first = 0; first < logits.size(); first += kPanelOutputs) {
        largest.push_back(*std::max_element(&logits[first], &logits[first] + kPanelOutputs));
    }
    return largest;
}

static Operand at(std::vector<float>& rows, int64_t width) {
    return {reinterpret_cast<char*>(rows.data()), width * 4, DType::float32};
}

static bool choose(const char* target, const std::string& name, int64_t num_rows) {
    Random random(1);
    std::vector<float> logits = some_logits(random, num_rows), largest = largest_of_panels(logits);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < kPrompt + 12; ++i) tokens.push_back(static_cast<int32_t>(random.below(kVocab)));
    std::vector<Draw> draws(num_rows, draw_named(name));
    std::vector<Row> rows;
    for (int64_t i = 0; i < num_rows; ++i) {
        draws[i].seed = i;
        rows.push_back({&draws[i], tokens.data(), static_cast<int64_t>(tokens.size())});
    }
    Team team({std::nullopt});
    Sampler sampler(team, kVocab, target, Head{at(logits, kVocab), at(largest, kVocab / kPanelOutputs), num_rows});
    std::vector<Choice> choices;
    sampler.choose(logits.data(), kVocab, rows, choices);
    for (const Choice& choice : choices) {
        if (!choice.token) return false;
    }
    return true;
}

}  // namespace tv::test

int main(int argc, char** argv) {
    if (argc != 4) {
        std::fprintf(stderr, "usage: fixed_choice TARGET greedy|top-p|all NUM_ROWS\n");
        return 2;
    }
    return tv::test::choose(argv[1], argv[2], std::atol(argv[3])) ? 0 : 1;
}
