// One step of a small decoder on one thread, always the same, for counting its instructions:
//   fixed_step TARGET bfloat16|int8 NUM_TOKENS
// Sizes are such that every kernel's inner loop dominates, and none is a multiple of everything.
#include <cstdlib>
#include <memory>

#include "check.h"
#include "program.h"

namespace tv::test {

constexpr int64_t kHidden = 576, kHeads = 9, kKvHeads = 3, kHeadDim = 64, kWide = 1536, kVocab = 4096, kPast = 100;
constexpr int64_t kSlotTokens = 512, kLayers = 2;

class Step {
public:
    Step(const char* target, DType weights, int64_t num_tokens)
        : program_(target), weights_(weights), num_tokens_(num_tokens) {
        Matrix& tokens = integers(num_tokens);
        Matrix& positions = integers(num_tokens);
        Matrix& starts = integers(2);
        Matrix& slots = integers(1);
        for (int64_t i = 0; i < num_tokens; ++i) {
            tokens.set(i, 0, static_cast<double>(random_.below(kVocab)));
            positions.set(i, 0, static_cast<double>(kPast + i));
        }
        starts.set(1, 0, static_cast<double>(num_tokens));
        Matrix& angles = rows(kHeadDim);
        program_.add("rope_angles", "tokens", {at(positions), at(vector(kHeadDim / 2)), at(angles)}, {kHeadDim / 2},
                     {1.0});
        Matrix* x = &rows(kHidden);
        program_.add("embed", "tokens", {at(tokens), matrix(kVocab, kHidden), at(*x)}, {kHidden, 1}, {});
        Matrix *sum = x, *normed = &rows(kHidden);
        program_.add("rms_norm", "tokens", {at(*x), at(vector(kHidden)), at(*normed)}, {1, kHidden}, {1e-5});
        for (int64_t layer = 0; layer < kLayers; ++layer) {
            Matrix &q = linear(*normed, kHeads * kHeadDim), &k = linear(*normed, kKvHeads * kHeadDim);
            Matrix &v = linear(*normed, kKvHeads * kHeadDim), &turned = rows(kHeads * kHeadDim), &read = rows(kHidden);
            Matrix& cache = made(DType::bfloat16, 1, kSlotTokens * 2 * kKvHeads * kHeadDim);
            program_.add("rope_kv_store", "tokens",
                         {at(q), at(k), at(v), at(angles), at(turned), at(cache), at(positions), at(starts), at(slots)},
                         {kHeads, kKvHeads, kHeadDim, kHeadDim, kSlotTokens}, {});
            program_.add("attention", "tokens",
                         {at(turned), at(cache), at(read), at(positions), at(starts), at(slots)},
                         {kHeads, kKvHeads, kHeadDim, kSlotTokens}, {0.125});
            add_norm(sum, normed, linear(read, kHidden));
            Matrix &gate = linear(*normed, kWide), &up = linear(*normed, kWide), &product = rows(kWide);
            program_.add("silu_mul", "tokens", {at(gate), at(up), at(product)}, {kWide}, {});
            add_norm(sum, normed, linear(product, kHidden));
        }
        logits_ = &linear(*normed, kVocab, at(rows(kVocab / kPanelOutputs)));
    }

    void run() {
        Team team({std::nullopt});
        program_.run(team, num_tokens_, 1, num_tokens_, nullptr);
    }

    bool is_finite() const { return std::isfinite(logits_->at(num_tokens_ - 1, kVocab - 1)); }

private:
    // Zeros: which numbers are computed with changes no count.
    Matrix& made(DType dtype, int64_t num_rows, int64_t width) {
        held_.push_back(std::make_unique<Matrix>(dtype, num_rows, width, 0));
        return held_.back()->fill(0.0);
    }
    Matrix& integers(int64_t count) { return made(DType::int32, count, 1); }
    Matrix& vector(int64_t width) { return made(DType::float32, 1, width); }
    Matrix& rows(int64_t width) { return made(DType::float32, num_tokens_, width); }
    static Operand at(Matrix& matrix) { return matrix.operand(); }

    Operand matrix(int64_t outputs, int64_t inputs) {
        const bool is_int8 = weights_ == DType::int8;
        const int64_t row = inputs + inputs % 2 + (is_int8 ? 2 * ((inputs + kGroupInputs - 1) / kGroupInputs) : 0);
        return at(made(weights_, 1, (outputs + kPanelOutputs - 1) / kPanelOutputs * kPanelOutputs * row));
    }
    Matrix& linear(Matrix& x, int64_t outputs, const Operand& largest = {nullptr, 0, DType::float32}) {
        Matrix& out = rows(outputs);
        program_.add("linear", "tokens",
                     {at(x), matrix(outputs, x.width()), {nullptr, 0, DType::float32}, at(out), largest},
                     {x.width(), outputs}, {});
        return out;
    }
    void add_norm(Matrix*& sum, Matrix*& normed, Matrix& other) {
        Matrix &next = rows(kHidden), &out = rows(kHidden);
        program_.add("add_rms_norm", "tokens", {at(*sum), at(other), at(vector(kHidden)), at(next), at(out)}, {kHidden},
                     {1e-5});
        sum = &next;
        normed = &out;
    }

    Program program_;
    DType weights_;
    int64_t num_tokens_;
    Random random_{1};
    std::vector<std::unique_ptr<Matrix>> held_;
    Matrix* logits_ = nullptr;
};

}  // namespace tv::test

int main(int argc, char** argv) {
    if (argc != 4) {
        std::fprintf(stderr, "usage: fixed_step TARGET bfloat16|int8 NUM_TOKENS\n");
        return 2;
    }
    tv::test::Step step(argv[1], tv::dtype_named(argv[2]), std::atol(argv[3]));
    step.run();
    return step.is_finite() ? 0 : 1;
}
