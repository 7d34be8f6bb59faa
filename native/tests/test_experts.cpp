// Kernels of the router and of experts: choices among a row, rows ordered by expert, a product with each one's weights.
#include <algorithm>
#include <array>
#include <numeric>

#include "check.h"
#include "dispatch.h"
#include "program.h"
#include "suites.h"

namespace tv::test {

// Runs a call on every target with one thread and with two; `judge` says what is wrong with what it made.
template <class Judge>
static void check_call(const Setting& setting, const std::string& kernel, const std::string& sizes, int64_t rows,
                       const std::vector<Matrix*>& operands, size_t num_inputs, const std::vector<int64_t>& integers,
                       Judge judge) {
    std::string first_bits;
    for (const Target& target : supported_targets()) {
        for (Team* team : {&setting.alone, &setting.pair}) {
            std::vector<Operand> bound;
            for (size_t i = 0; i < operands.size(); ++i) {
                if (i >= num_inputs) operands[i]->fill(operands[i]->dtype() == DType::int32 ? -1.0 : std::nan(""));
                bound.push_back(operands[i]->operand());
            }
            Program program(target.name);
            program.add(kernel, "tokens", bound, integers, {});
            program.run(*team, rows, 0, 0, nullptr);
            std::string bits;
            for (size_t i = num_inputs; i < operands.size(); ++i) bits += operands[i]->contents(0, operands[i]->rows());
            const std::string name = kernel + " " + sizes + " on " + target.name + ": ";
            if (first_bits.empty()) add_to_digest(first_bits = bits);
            check(bits == first_bits, name + "same bits on every target, with one thread and two");
            check(judge(), name + "agrees with its reference");
            for (const Matrix* operand : operands) check(operand->guards_are_intact(), name + "writes nothing else");
        }
    }
}

static std::vector<int64_t> highest(const Matrix& values, int64_t row, int64_t count) {
    std::vector<int64_t> order(values.width());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return values.at(row, a) > values.at(row, b);
    });
    order.resize(count);
    return order;
}

static void test_choices(const Setting& setting, int64_t rows, int64_t width, int64_t count) {
    Random random(rows * 31 + width * 7 + count);
    Matrix logits(DType::float32, rows, width), values(DType::float32, rows, count), chosen(DType::int32, rows, count);
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < width; ++i) logits.set(r, i, static_cast<double>(random.below(9)) - 4.0);  // many ties
    }
    const std::string sizes = std::to_string(count) + " of " + std::to_string(width);
    const auto is_chosen = [&](int64_t r) {
        const std::vector<int64_t> wanted = highest(logits, r, count);
        for (int64_t i = 0; i < count; ++i) {
            if (chosen.at(r, i) != static_cast<double>(wanted[i])) return false;
        }
        return true;
    };
    check_call(setting, "top_k", sizes, rows, {&logits, &values, &chosen}, 1, {width, count}, [&] {
        for (int64_t r = 0; r < rows; ++r) {
            if (!is_chosen(r)) return false;
            for (int64_t i = 0; i < count; ++i) {
                if (values.at(r, i) != logits.at(r, static_cast<int64_t>(chosen.at(r, i)))) return false;
            }
        }
        return true;
    });
    for (const bool is_sigmoid : {false, true}) {
        for (const bool is_renormalised : {false, true}) {
            const auto score = [&](double x) { return is_sigmoid ? 1.0 / (1.0 + std::exp(-x)) : std::exp(x); };
            check_call(setting, "router_topk", sizes, rows, {&logits, &values, &chosen}, 1,
                       {width, count, is_sigmoid, is_renormalised}, [&] {
                           for (int64_t r = 0; r < rows; ++r) {
                               if (!is_chosen(r)) return false;
                               double total = is_sigmoid && !is_renormalised ? 1.0 : 0.0;
                               for (int64_t i = 0; i < width && !is_sigmoid && !is_renormalised; ++i) {
                                   total += score(logits.at(r, i));
                               }
                               const auto logit = [&](int64_t i) {
                                   return logits.at(r, static_cast<int64_t>(chosen.at(r, i)));
                               };
                               for (int64_t i = 0; i < count && is_renormalised; ++i) total += score(logit(i));
                               for (int64_t i = 0; i < count; ++i) {
                                   if (std::abs(values.at(r, i) - score(logit(i)) / total) > 1e-6) return false;
                               }
                           }
                           return true;
                       });
        }
    }
}

static void test_routing(const Setting& setting, int64_t tokens, int64_t num_experts, int64_t chosen, int64_t width,
                         int64_t outputs, DType dtype) {
    Random random(tokens * 131 + num_experts * 17 + width);
    Matrix x(DType::float32, tokens, width), experts(DType::int32, tokens, chosen), weights(DType::float32, tokens, chosen);
    x.fill_random(random);
    weights.fill_random(random);
    for (int64_t t = 0; t < tokens; ++t) {
        const int64_t first = random.below(num_experts);
        for (int64_t c = 0; c < chosen; ++c) experts.set(t, c, static_cast<double>((first + c) % num_experts));
    }
    // Pair p stands at token p / chosen: where each goes when pairs are ordered by expert, stably.
    std::vector<int64_t> order(tokens * chosen);
    std::iota(order.begin(), order.end(), 0);
    const auto expert_of = [&](int64_t pair) { return experts.at(pair / chosen, pair % chosen); };
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return expert_of(a) < expert_of(b); });
    Matrix rows(DType::float32, tokens, chosen * width), places(DType::int32, tokens, chosen),
        ends(DType::int32, num_experts, 1, 0);
    const std::string sizes = std::to_string(tokens) + " tokens, " + std::to_string(chosen) + " of " +
                              std::to_string(num_experts) + " experts, width " + std::to_string(width);
    check_call(setting, "moe_permute", sizes, tokens, {&x, &experts, &rows, &places, &ends}, 2,
               {width, chosen, num_experts}, [&] {
                   for (int64_t place = 0; place < tokens * chosen; ++place) {
                       const int64_t pair = order[place];
                       if (places.at(pair / chosen, pair % chosen) != static_cast<double>(place)) return false;
                       for (int64_t i = 0; i < width; ++i) {
                           const double got = rows.at(place / chosen, place % chosen * width + i);
                           if (got != x.at(pair / chosen, i)) return false;
                       }
                   }
                   for (int64_t e = 0; e < num_experts; ++e) {
                       const auto end = std::count_if(order.begin(), order.end(), [&](int64_t pair) {
                           return expert_of(pair) <= static_cast<double>(e);
                       });
                       if (ends.at(e, 0) != static_cast<double>(end)) return false;
                   }
                   return true;
               });

    const int64_t num_panels = (outputs + kPanelOutputs - 1) / kPanelOutputs;
    const int64_t of_expert = num_panels * panel_elements(dtype, width);
    Matrix weight(dtype, num_experts * outputs, width), panels(dtype, 1, num_experts * of_expert),
        made(DType::float32, tokens, chosen * outputs);
    weight.fill_random(random);
    for (int64_t e = 0; e < num_experts; ++e) {
        fill_panels(panels, e * of_expert, weight, e * outputs, (e + 1) * outputs);
    }
    // One chain in single precision: the contract itself.
    check_call(setting, "grouped_linear", sizes + " by " + std::to_string(outputs), tokens,
               {&rows, &panels, &ends, &made}, 3, {chosen, width, outputs, num_experts}, [&] {
                   for (int64_t place = 0; place < tokens * chosen; ++place) {
                       const int64_t expert = static_cast<int64_t>(expert_of(order[place]));
                       for (int64_t o = 0; o < outputs; ++o) {
                           const float sum = chain(
                               dtype, width, [&](int64_t i) { return rows.at(place / chosen, place % chosen * width + i); },
                               [&](int64_t i) { return static_cast<float>(weight.at(expert * outputs + o, i)); });
                           if (made.at(place / chosen, place % chosen * outputs + o) != sum) return false;
                       }
                   }
                   return true;
               });

    Matrix y(DType::float32, tokens, width);
    check_call(setting, "moe_unpermute", sizes, tokens, {&rows, &places, &weights, &y}, 3, {width, chosen}, [&] {
        for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t i = 0; i < width; ++i) {
                float sum = 0.0f;
                for (int64_t c = 0; c < chosen; ++c) {
                    sum = std::fmaf(static_cast<float>(weights.at(t, c)), static_cast<float>(x.at(t, i)), sum);
                }
                if (y.at(t, i) != sum) return false;
            }
        }
        return true;
    });
}

void test_experts(const Setting& setting) {
    for (const auto& [rows, width, count] : {std::array<int64_t, 3>{1, 1, 1}, {3, 33, 7}, {9, 40, 40}, {2, 257, 16}}) {
        test_choices(setting, rows, width, count);
    }
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        test_routing(setting, 1, 1, 1, 1, 1, dtype);
        test_routing(setting, 13, 4, 2, 33, 31, dtype);
        test_routing(setting, 2, 9, 3, 16, 65, dtype);
        test_routing(setting, 110, 1, 1, 5, 33, dtype);  // more rows than go through their inputs together
        if (!setting.is_small) test_routing(setting, 70, 3, 2, 130, 97, dtype);
    }
}

}  // namespace tv::test
