// What the kernel tests are written with: a check that counts, random numbers, matrices with guards around their rows.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.h"

namespace tv::test {

struct Counts {
    int passed = 0;
    int failed = 0;
};
inline Counts counts;

// Of all that the kernels computed, for comparing hosts: an answer should not depend on the machine either.
inline uint64_t digest = 0xcbf29ce484222325u;

inline void add_to_digest(const std::string& bytes) {
    for (const char byte : bytes) digest = (digest ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
}

inline void check(bool holds, const std::string& claim) {
    if (holds) {
        ++counts.passed;
        return;
    }
    ++counts.failed;
    if (counts.failed <= 40) std::printf("FAILED  %s\n", claim.c_str());
}

// splitmix64: the same numbers everywhere.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t bits() {
        uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
    double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-52 - 1.0; }  // [-1, 1)

private:
    uint64_t state_;
};

inline uint16_t to_bfloat16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_bfloat16(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// The chain of a product over bfloat16, as the contract has it: x rounded to bfloat16, in pairs, the second of two first.
// Denormals are zeros in it; callers have none.
template <class X, class Weight>
float pair_chain(int64_t first, int64_t end, X x, Weight weight) {
    float sum = 0.0f;
    for (int64_t k = first; k < end; k += 2) {
        for (const int64_t i : {k + 1, k}) {
            if (i < end) sum = std::fmaf(from_bfloat16(to_bfloat16(static_cast<float>(x(i)))), weight(i), sum);
        }
    }
    return sum;
}

// Rows of `width` elements with a gap after each, and gaps before the first and after the last. Exactly as much memory
// as it says, so that AddressSanitizer sees what runs past it.
class Matrix {
public:
    Matrix(DType dtype, int64_t rows, int64_t width, int64_t gap = 5)
        : dtype_(dtype), rows_(rows), width_(width),
          element_(dtype == DType::int8 ? 1 : dtype == DType::bfloat16 ? 2 : 4), stride_((width + gap) * element_),
          before_(gap * element_), bytes_(before_ + rows * stride_, kGuard) {}

    int64_t rows() const { return rows_; }
    int64_t width() const { return width_; }
    DType dtype() const { return dtype_; }

    Operand operand(int64_t row = 0) { return {address(row, 0), stride_, dtype_}; }

    double at(int64_t row, int64_t column) const {
        const char* p = const_cast<Matrix*>(this)->address(row, column);
        if (dtype_ == DType::bfloat16) return from_bfloat16(value_at<uint16_t>(p));
        if (dtype_ == DType::int32) return value_at<int32_t>(p);
        if (dtype_ == DType::int8) return value_at<int8_t>(p);
        return value_at<float>(p);
    }

    void set(int64_t row, int64_t column, double value) {
        char* p = address(row, column);
        const float single = static_cast<float>(value);
        const int32_t integer = dtype_ == DType::int32 ? static_cast<int32_t>(value) : 0;
        const uint16_t half = to_bfloat16(single);
        const int8_t small = dtype_ == DType::int8 ? static_cast<int8_t>(value) : 0;
        if (dtype_ == DType::int8) *p = static_cast<char>(small);
        else if (dtype_ == DType::bfloat16) std::memcpy(p, &half, 2);
        else if (dtype_ == DType::int32) std::memcpy(p, &integer, 4);
        else std::memcpy(p, &single, 4);
    }

    Matrix& fill(double value) {
        for (int64_t r = 0; r < rows_; ++r)
            for (int64_t c = 0; c < width_; ++c) set(r, c, value);
        return *this;
    }
    Matrix& fill_random(Random& random, double scale = 1.0) {
        for (int64_t r = 0; r < rows_; ++r)
            for (int64_t c = 0; c < width_; ++c) set(r, c, scale * random.uniform());
        return *this;
    }

    // The bytes of the elements, row after row.
    std::string contents(int64_t first_row, int64_t num_rows) {
        std::string found;
        for (int64_t r = first_row; r < first_row + num_rows; ++r) found.append(address(r, 0), width_ * element_);
        return found;
    }

    bool guards_are_intact() const {
        for (int64_t i = 0; i < static_cast<int64_t>(bytes_.size()); ++i) {
            const int64_t in_row = (i - before_) % stride_;
            const bool is_guard = i < before_ || in_row >= width_ * element_;
            if (is_guard && bytes_[i] != kGuard) return false;
        }
        return true;
    }

private:
    static constexpr char kGuard = 0x5a;

    template <class T>
    static T value_at(const char* p) {
        T value;
        std::memcpy(&value, p, sizeof value);
        return value;
    }
    char* address(int64_t row, int64_t column) { return bytes_.data() + before_ + row * stride_ + column * element_; }

    DType dtype_;
    int64_t rows_, width_, element_, stride_, before_;
    std::vector<char> bytes_;
};

// Of a product with weights in `dtype`, float32 or bfloat16: float32 inputs come in order, as they are.
template <class X, class Weight>
float chain(DType dtype, int64_t inputs, X x, Weight weight) {
    if (dtype != DType::float32) return pair_chain(0, inputs, x, weight);
    float sum = 0.0f;
    for (int64_t k = 0; k < inputs; ++k) sum = std::fmaf(static_cast<float>(x(k)), weight(k), sum);
    return sum;
}

// Elements of a panel in float32 or bfloat16, whose inputs lie in pairs.
inline int64_t panel_elements(DType dtype, int64_t inputs) {
    return (dtype == DType::bfloat16 ? inputs + inputs % 2 : inputs) * kPanelOutputs;
}

// Rows [first, end) of `weight` as panels, from element `start` of `panels` on.
inline void fill_panels(Matrix& panels, int64_t start, const Matrix& weight, int64_t first, int64_t end) {
    const int64_t of_panel = panel_elements(panels.dtype(), weight.width());
    for (int64_t i = 0; i < (end - first + kPanelOutputs - 1) / kPanelOutputs * of_panel; ++i) panels.set(0, start + i, 0.0);
    for (int64_t o = first; o < end; ++o) {
        const int64_t panel = start + (o - first) / kPanelOutputs * of_panel, lane = (o - first) % kPanelOutputs;
        for (int64_t i = 0; i < weight.width(); ++i) {
            const int64_t place = panels.dtype() == DType::bfloat16 ? (i / 2 * kPanelOutputs + lane) * 2 + i % 2
                                                                     : i * kPanelOutputs + lane;
            panels.set(0, panel + place, weight.at(o, i));
        }
    }
}

}  // namespace tv::test
