// Kernels whose output rows depend on one input row each: linear, norms, rope, pointwise.
#include <algorithm>
#include <functional>

#include "check.h"
#include "program.h"
#include "suites.h"

namespace tv::test {

// A call of a kernel: what it takes by row, what it takes whole, and what each output row should be.
struct RowCase {
    std::string kernel;
    std::vector<Matrix*> operands;  // null: an absent optional
    std::vector<bool> is_by_row;
    std::vector<int64_t> integers;
    std::vector<double> numbers;
    std::vector<int> outputs;
    double absolute, relative;
    std::function<double(int output, int64_t row, int64_t column)> reference;
    std::string sizes;
};

static void run_case(const RowCase& test, const Target& target, Team& team, int64_t first_row, int64_t num_rows) {
    std::vector<Operand> bound;
    for (size_t i = 0; i < test.operands.size(); ++i) {
        bound.push_back(test.operands[i] == nullptr
                            ? Operand{nullptr, 0, DType::float32}
                            : test.operands[i]->operand(test.is_by_row[i] ? first_row : 0));
    }
    Program program(target.name);
    program.add(test.kernel, "rows", bound, test.integers, test.numbers);
    program.run(team, 0, 0, num_rows, nullptr);
}

static bool is_near(double got, double wanted, double absolute, double relative) {
    if (std::isnan(wanted)) return std::isnan(got);
    if (std::isinf(wanted)) return got == wanted;
    return std::abs(got - wanted) <= absolute + relative * std::abs(wanted);
}

static bool agrees(const RowCase& test) {
    for (const int output : test.outputs) {
        const Matrix& out = *test.operands[output];
        for (int64_t r = 0; r < out.rows(); ++r) {
            for (int64_t c = 0; c < out.width(); ++c) {
                const double wanted = test.reference(output, r, c);
                if (!is_near(out.at(r, c), wanted, test.absolute, test.relative)) {
                    std::printf("        row %ld column %ld: %.9g, wanted %.9g\n", static_cast<long>(r),
                                static_cast<long>(c), out.at(r, c), wanted);
                    return false;
                }
            }
        }
    }
    return true;
}

static std::string outputs_of(const RowCase& test, int64_t first_row, int64_t num_rows) {
    std::string found;
    for (const int output : test.outputs) found += test.operands[output]->contents(first_row, num_rows);
    return found;
}

static void clear_outputs(const RowCase& test) {
    for (const int output : test.outputs) test.operands[output]->fill(std::nan(""));
}

static void check_case(const Setting& setting, const RowCase& test) {
    const int64_t rows = test.operands[test.outputs[0]]->rows();
    std::string first_bits;
    for (const Target& target : supported_targets()) {
        const std::string name = test.kernel + " " + test.sizes + " on " + target.name + ": ";
        clear_outputs(test);
        run_case(test, target, setting.alone, 0, rows);
        const std::string bits = outputs_of(test, 0, rows);
        check(agrees(test), name + "agrees with its reference");
        if (first_bits.empty()) add_to_digest(first_bits = bits);
        check(bits == first_bits, name + "same bits as on the best target");
        clear_outputs(test);
        run_case(test, target, setting.pair, 0, rows);
        check(outputs_of(test, 0, rows) == bits, name + "same bits with two threads");
        for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
            const std::string in_batch = outputs_of(test, row, 1);
            clear_outputs(test);
            run_case(test, target, setting.alone, row, 1);
            check(outputs_of(test, row, 1) == in_batch, name + "a row alone has the bits it has among others");
            run_case(test, target, setting.alone, 0, rows);
        }
        for (const Matrix* operand : test.operands) {
            if (operand != nullptr) check(operand->guards_are_intact(), name + "writes nothing else");
        }
    }
}

static Matrix panels_of(const Matrix& weight, DType dtype) {
    const int64_t num_panels = (weight.rows() + kPanelOutputs - 1) / kPanelOutputs;
    Matrix panels(dtype, 1, num_panels * panel_elements(dtype, weight.width()));
    fill_panels(panels, 0, weight, 0, weight.rows());
    return panels;
}

// Weights in int8: integers, and the scale of each group of inputs of an output.
struct Int8Weight {
    Matrix integers, scales;

    Int8Weight(Random& random, int64_t outputs, int64_t inputs)
        : integers(DType::int8, outputs, inputs), scales(DType::bfloat16, outputs, num_groups(inputs)) {
        integers.fill_random(random, 127.0);
        scales.fill_random(random, 0.01);
    }

    static int64_t num_groups(int64_t inputs) { return (inputs + kGroupInputs - 1) / kGroupInputs; }

    double at(int64_t output, int64_t input) const {
        return integers.at(output, input) * scales.at(output, input / kGroupInputs);
    }

    // Bytes: panel after panel, group after group, a group's 32 scales and then its integers, of an even number of inputs.
    Matrix panels() const {
        const int64_t inputs = integers.width() + integers.width() % 2;
        const int64_t num_panels = (integers.rows() + kPanelOutputs - 1) / kPanelOutputs;
        const int64_t panel_bytes = inputs * kPanelOutputs + num_groups(inputs) * kPanelOutputs * 2;
        Matrix packed(DType::int8, 1, num_panels * panel_bytes, 6);  // an even address
        packed.fill(0.0);
        for (int64_t o = 0; o < integers.rows(); ++o) {
            const int64_t lane = o % kPanelOutputs;
            for (int64_t i = 0; i < integers.width(); ++i) {
                const int64_t group = i / kGroupInputs;
                const int64_t start = o / kPanelOutputs * panel_bytes + group * kPanelOutputs * (2 + kGroupInputs);
                const int64_t of_input = (i % kGroupInputs) * kPanelOutputs;
                packed.set(0, start + kPanelOutputs * 2 + of_input + lane, integers.at(o, i));
                const uint16_t scale = to_bfloat16(static_cast<float>(scales.at(o, group)));
                const int64_t place = start + 2 * lane;
                packed.set(0, place, static_cast<int8_t>(scale & 0xff));
                packed.set(0, place + 1, static_cast<int8_t>(scale >> 8));
            }
        }
        return packed;
    }

    // As the embedding reads it: a row's integers, then its scales.
    Matrix rows() const {
        const int64_t inputs = integers.width();
        Matrix packed(DType::int8, integers.rows(), inputs + 2 * num_groups(inputs), 6);
        for (int64_t o = 0; o < integers.rows(); ++o) {
            for (int64_t i = 0; i < inputs; ++i) packed.set(o, i, integers.at(o, i));
            for (int64_t g = 0; g < num_groups(inputs); ++g) {
                const uint16_t scale = to_bfloat16(static_cast<float>(scales.at(o, g)));
                packed.set(o, inputs + 2 * g, static_cast<int8_t>(scale & 0xff));
                packed.set(o, inputs + 2 * g + 1, static_cast<int8_t>(scale >> 8));
            }
        }
        return packed;
    }
};

static int64_t num_panels(int64_t outputs) { return (outputs + kPanelOutputs - 1) / kPanelOutputs; }

// Of a panel of a row; a NaN ranks with +inf.
static double largest_of_panel(const Matrix& out, int64_t row, int64_t panel) {
    double largest = -HUGE_VAL;
    for (int64_t c = panel * kPanelOutputs; c < std::min((panel + 1) * kPanelOutputs, out.width()); ++c) {
        largest = std::max(largest, std::isnan(out.at(row, c)) ? HUGE_VAL : out.at(row, c));
    }
    return largest;
}

static void test_linear_int8(const Setting& setting, int64_t rows, int64_t inputs, int64_t outputs) {
    Random random(rows * 7907 + inputs * 37 + outputs);
    Matrix x(DType::float32, rows, inputs), out(DType::float32, rows, outputs),
        largest(DType::float32, rows, num_panels(outputs));
    x.fill_random(random);
    const Int8Weight weight(random, outputs, inputs);
    Matrix panels = weight.panels();
    // In single precision the contract itself: a chain over groups, each of them a chain. It must match exactly.
    const auto reference = [&](int output, int64_t r, int64_t c) -> double {
        if (output == 4) return largest_of_panel(out, r, c);
        float sum = 0.0f;
        for (int64_t first = 0; first < inputs; first += kGroupInputs) {
            const float of_group = pair_chain(
                first, std::min(first + kGroupInputs, inputs), [&](int64_t k) { return x.at(r, k); },
                [&](int64_t k) { return static_cast<float>(weight.integers.at(c, k)); });
            sum = std::fmaf(of_group, static_cast<float>(weight.scales.at(c, first / kGroupInputs)), sum);
        }
        return sum;
    };
    const std::string sizes = std::to_string(rows) + "x" + std::to_string(inputs) + "x" + std::to_string(outputs);
    check_case(setting, {"linear", {&x, &panels, nullptr, &out, &largest}, {true, false, false, true, true},
                         {inputs, outputs}, {}, {3, 4}, 0.0, 0.0, reference, sizes + " int8"});
}

static void test_linear(const Setting& setting, int64_t rows, int64_t inputs, int64_t outputs, DType dtype,
                        bool has_bias) {
    Random random(rows * 7919 + inputs * 31 + outputs);
    Matrix x(DType::float32, rows, inputs), weight(dtype, outputs, inputs), bias(DType::float32, 1, outputs),
        out(DType::float32, rows, outputs), largest(DType::float32, rows, num_panels(outputs));
    x.fill_random(random);
    weight.fill_random(random);
    bias.fill_random(random);
    Matrix panels = panels_of(weight, dtype);
    // The reference in single precision is the contract itself: one chain. It must match exactly.
    const auto reference = [&](int output, int64_t r, int64_t c) -> double {
        if (output == 4) return largest_of_panel(out, r, c);
        const float sum = chain(dtype, inputs, [&](int64_t k) { return x.at(r, k); },
                                [&](int64_t k) { return static_cast<float>(weight.at(c, k)); });
        return has_bias ? sum + static_cast<float>(bias.at(0, c)) : sum;
    };
    check_case(setting, {"linear", {&x, &panels, has_bias ? &bias : nullptr, &out, &largest},
                         {true, false, false, true, true}, {inputs, outputs}, {}, {3, 4}, 0.0, 0.0, reference,
                         std::to_string(rows) + "x" + std::to_string(inputs) + "x" + std::to_string(outputs)});
    double error = 0.0;
    for (int64_t c = 0; c < outputs; ++c) {
        double sum = has_bias ? bias.at(0, c) : 0.0;
        for (int64_t k = 0; k < inputs; ++k) {
            const float element = static_cast<float>(x.at(rows - 1, k));
            sum += (dtype == DType::float32 ? element : from_bfloat16(to_bfloat16(element))) * weight.at(c, k);
        }
        error = std::max(error, std::abs(out.at(rows - 1, c) - sum));
    }
    check(error < 1e-6 * static_cast<double>(inputs) + 1e-6, "linear is near the double reference");
}

// Numbers that are none, and panels that have no other: they come with the bias.
static void test_largest(const Setting& setting, int64_t rows, int64_t outputs, DType dtype) {
    Random random(rows * 7907 + outputs);
    Matrix x(DType::float32, rows, 5), weight(dtype, outputs, 5), bias(DType::float32, 1, outputs),
        out(DType::float32, rows, outputs), largest(DType::float32, rows, num_panels(outputs));
    x.fill_random(random);
    weight.fill_random(random);
    bias.fill_random(random);
    for (int64_t c = 0; c < outputs; ++c) {
        const int64_t kind = c / kPanelOutputs % 5;
        if (kind == 1 && random.below(20) == 0) bias.set(0, c, std::nan(""));
        if (kind == 2 && random.below(20) == 0) bias.set(0, c, HUGE_VAL);
        if (kind == 3) bias.set(0, c, -HUGE_VAL);
        if (kind == 4) bias.set(0, c, random.below(2) == 0 ? -HUGE_VAL : std::nan(""));
    }
    Matrix panels = panels_of(weight, dtype);
    for (const Target& target : supported_targets()) {
        largest.fill(std::nan(""));
        Program program(target.name);
        program.add("linear", "rows", {x.operand(), panels.operand(), bias.operand(), out.operand(), largest.operand()},
                    {5, outputs}, {});
        program.run(setting.pair, 0, 0, rows, nullptr);
        bool is_right = true;
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t p = 0; p < largest.width(); ++p) is_right &= largest.at(r, p) == largest_of_panel(out, r, p);
        }
        check(is_right, "the largest of " + std::to_string(outputs) + " with what is no number, on " + target.name);
    }
}

static void test_norms(const Setting& setting, int64_t rows, int64_t groups, int64_t size) {
    Random random(rows * 131 + size);
    const double eps = 1e-5;
    Matrix x(DType::float32, rows, groups * size), weight(DType::float32, 1, size),
        out(DType::float32, rows, groups * size);
    x.fill_random(random, 3.0);
    weight.fill_random(random);
    const auto normalised = [&](const auto& value, int64_t r, int64_t c) {
        double squares = 0.0;
        for (int64_t i = 0; i < size; ++i) squares += value(r, c / size * size + i) * value(r, c / size * size + i);
        const double mean = squares / static_cast<double>(size);
        return value(r, c) / std::sqrt(mean + eps) * weight.at(0, c % size);
    };
    const std::string sizes = std::to_string(rows) + "x" + std::to_string(groups) + "x" + std::to_string(size);
    check_case(setting, {"rms_norm", {&x, &weight, &out}, {true, false, true}, {groups, size}, {eps}, {2}, 1e-6, 1e-6,
                         [&](int, int64_t r, int64_t c) {
                             return normalised([&](int64_t i, int64_t j) { return x.at(i, j); }, r, c);
                         },
                         sizes});
    if (groups != 1) return;
    Matrix other(DType::float32, rows, size), sum(DType::float32, rows, size);
    other.fill_random(random);
    const auto added = [&](int64_t i, int64_t j) { return x.at(i, j) + other.at(i, j); };
    check_case(setting, {"add_rms_norm", {&x, &other, &weight, &sum, &out}, {true, true, false, true, true}, {size},
                         {eps}, {3, 4}, 1e-6, 1e-6,
                         [&](int output, int64_t r, int64_t c) {
                             return output == 3 ? added(r, c) : normalised(added, r, c);
                         },
                         sizes});
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        Matrix rounded(dtype, rows, size);
        const double error = dtype == DType::float32 ? 1e-6 : 0x1p-8;  // a bfloat16 keeps eight bits
        check_case(setting, {"add_rms_norm_cast", {&x, &other, &weight, &sum, &rounded, &out},
                             {true, true, false, true, true, true}, {size}, {eps}, {3, 4, 5}, 1e-6, error,
                             [&](int output, int64_t r, int64_t c) {
                                 return output == 3 ? added(r, c) : normalised(added, r, c);
                             },
                             sizes});
    }
}

static double silu(double x) { return x / (1.0 + std::exp(-x)); }

static void test_pointwise(const Setting& setting, int64_t rows, int64_t width) {
    Random random(rows + 1009 * width);
    Matrix a(DType::float32, rows, width), b(DType::float32, rows, width), out(DType::float32, rows, width);
    a.fill_random(random, 20.0);
    b.fill_random(random);
    const std::string sizes = std::to_string(rows) + "x" + std::to_string(width);
    const std::vector<bool> by_row = {true, true, true};
    check_case(setting, {"add", {&a, &b, &out}, by_row, {width}, {}, {2}, 0.0, 6e-8,
                         [&](int, int64_t r, int64_t c) { return a.at(r, c) + b.at(r, c); }, sizes});
    check_case(setting, {"silu_mul", {&a, &b, &out}, by_row, {width}, {}, {2}, 0.0, 4e-7,
                         [&](int, int64_t r, int64_t c) { return silu(a.at(r, c)) * b.at(r, c); }, sizes});

    Matrix half(DType::bfloat16, rows, width), wide(DType::float32, rows, width);
    check_case(setting, {"cast", {&a, &half}, {true, true}, {width}, {}, {1}, 0.0, 0.0,
                         [&](int, int64_t r, int64_t c) {
                             return from_bfloat16(to_bfloat16(static_cast<float>(a.at(r, c))));
                         },
                         sizes + " to bfloat16"});
    check_case(setting, {"cast", {&half, &wide}, {true, true}, {width}, {}, {1}, 0.0, 0.0,
                         [&](int, int64_t r, int64_t c) { return half.at(r, c); }, sizes + " to float32"});

    // `chosen` is a vector, and yet by row: a row alone takes it from its own element on. A gap would break it.
    Matrix chosen(DType::int32, rows, 1, 0);
    for (int64_t r = 0; r < rows; ++r) chosen.set(r, 0, static_cast<double>(random.below(rows)));
    const auto chosen_row = [&](int64_t r) { return static_cast<int64_t>(chosen.at(r, 0)); };
    check_case(setting, {"take_rows", {&a, &chosen, &out}, {false, true, true}, {width}, {}, {2}, 0.0, 0.0,
                         [&](int, int64_t r, int64_t c) { return a.at(chosen_row(r), c); }, sizes});
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        Matrix table(dtype, rows, width);
        table.fill_random(random);
        Matrix panels = panels_of(table, dtype);
        const auto reference = [&](int, int64_t r, int64_t c) { return table.at(chosen_row(r), c); };
        check_case(setting, {"embed", {&chosen, &table, &out}, {true, false, true}, {width, 0}, {}, {2}, 0.0, 0.0,
                             reference, sizes + " from rows"});
        check_case(setting, {"embed", {&chosen, &panels, &out}, {true, false, true}, {width, 1}, {}, {2}, 0.0, 0.0,
                             reference, sizes + " from panels"});
    }
    const Int8Weight table(random, rows, width);
    Matrix table_rows = table.rows(), table_panels = table.panels();
    const auto reference = [&](int, int64_t r, int64_t c) { return table.at(chosen_row(r), c); };
    check_case(setting, {"embed", {&chosen, &table_rows, &out}, {true, false, true}, {width, 0}, {}, {2}, 0.0, 0.0,
                         reference, sizes + " from rows in int8"});
    check_case(setting, {"embed", {&chosen, &table_panels, &out}, {true, false, true}, {width, 1}, {}, {2}, 0.0, 0.0,
                         reference, sizes + " from panels in int8"});
}

// The exponential, seen through silu(x) · 1: every magnitude, the ends of its range, and what is no number.
static void test_exp(const Setting& setting) {
    const double infinity = HUGE_VAL;
    std::vector<double> values = {0.0, -0.0, 1e-30, 86.0, -86.0, 120.0, -120.0, 3e38, infinity, std::nan("")};
    Random random(5);
    while (values.size() < 4099) values.push_back(87.0 * random.uniform() * random.uniform());
    const int64_t width = static_cast<int64_t>(values.size());
    Matrix gate(DType::float32, 1, width), up(DType::float32, 1, width), out(DType::float32, 1, width);
    for (int64_t i = 0; i < width; ++i) gate.set(0, i, values[i]);
    up.fill(1.0);
    check_case(setting, {"silu_mul", {&gate, &up, &out}, {true, true, true}, {width}, {}, {2}, 1e-37, 3e-7,
                         [&](int, int64_t r, int64_t c) { return silu(gate.at(r, c)); }, "over the range of exp"});
}

static void test_rope(const Setting& setting, int64_t rows, int64_t heads, int64_t head_dim, int64_t rotary) {
    Random random(rows + head_dim * 17 + rotary);
    const int64_t half = rotary / 2;
    const double scale = 1.25;
    Matrix positions(DType::int32, rows, 1, 0), inv_freq(DType::float32, 1, half), angles(DType::float32, rows, rotary);
    for (int64_t r = 0; r < rows; ++r) positions.set(r, 0, static_cast<double>(random.below(100000)));
    for (int64_t i = 0; i < half; ++i) inv_freq.set(0, i, std::pow(10000.0, -static_cast<double>(i) / half));
    const std::string sizes = std::to_string(rows) + "x" + std::to_string(heads) + "x" + std::to_string(head_dim) +
                              " rotary " + std::to_string(rotary);
    check_case(setting, {"rope_angles", {&positions, &inv_freq, &angles}, {true, false, true}, {half}, {scale}, {2},
                         1e-7, 1e-7,
                         [&](int, int64_t r, int64_t c) {
                             const float angle = static_cast<float>(positions.at(r, 0)) *
                                                 static_cast<float>(inv_freq.at(0, c % half));
                             return scale * (c < half ? std::cos(double{angle}) : std::sin(double{angle}));
                         },
                         sizes});
    Matrix x(DType::float32, rows, heads * head_dim), out(DType::float32, rows, heads * head_dim);
    x.fill_random(random);
    check_case(setting, {"rope", {&x, &angles, &out}, {true, true, true}, {heads, head_dim, rotary}, {}, {2}, 3e-7,
                         0.0,
                         [&](int, int64_t r, int64_t c) {
                             const int64_t i = c % head_dim;
                             if (i >= rotary) return x.at(r, c);
                             const double cosine = angles.at(r, i % half), sine = angles.at(r, half + i % half);
                             return i < half ? x.at(r, c) * cosine - x.at(r, c + half) * sine
                                             : x.at(r, c) * cosine + x.at(r, c - half) * sine;
                         },
                         sizes});
}

void test_rows(const Setting& setting) {
    const auto sizes = [&](std::vector<int64_t> small, std::vector<int64_t> more) {
        if (!setting.is_small) small.insert(small.end(), more.begin(), more.end());
        return small;
    };
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        for (const int64_t rows : sizes({1, 5, 13}, {2, 6, 12, 97})) {
            for (const int64_t inputs : sizes({1, 257}, {7, 256, 531})) {
                for (const int64_t outputs : sizes({1, 33}, {32, 129})) {
                    test_linear(setting, rows, inputs, outputs, dtype, (rows + outputs) % 2 == 0);
                }
            }
        }
        test_linear(setting, 2, 7001, 33, dtype, false);   // deeper than a block of one row
        test_linear(setting, 13, 1401, 33, dtype, true);   // and than one of several tiles
        test_linear(setting, 49, 65, 545, dtype, false);   // more outputs than so many rows have sums for
        test_largest(setting, 1, 1000, dtype);
        test_largest(setting, 13, 331, dtype);
    }
    test_linear_int8(setting, 2, 7001, 33);
    test_linear_int8(setting, 13, 1401, 33);
    test_linear_int8(setting, 49, 65, 545);
    for (const int64_t rows : sizes({1, 13}, {2, 6, 7, 97})) {
        for (const int64_t inputs : sizes({1, 321}, {63, 64, 65, 576})) {
            for (const int64_t outputs : sizes({33}, {1, 32, 129})) test_linear_int8(setting, rows, inputs, outputs);
        }
    }
    for (const int64_t rows : sizes({1, 9}, {17})) {
        for (const int64_t width : sizes({1, 17, 64}, {15, 16, 576})) {
            test_norms(setting, rows, 1, width);
            test_norms(setting, rows, 3, width);
            test_pointwise(setting, rows, width);
        }
        test_rope(setting, rows, 1, 2, 2);
        test_rope(setting, rows, 3, 64, 64);
        test_rope(setting, rows, 2, 50, 38);
    }
    test_exp(setting);
}

}  // namespace tv::test
