// The module trivet._native: types across, errors across, the GIL released while a team works. Nothing else.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

#include <memory>
#include <stdexcept>
#include <tuple>

#include "io_bind.h"
#include "program.h"
#include "roofline.h"
#include "sampler.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

using Seconds = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OperandTuple = std::tuple<uintptr_t, int64_t, std::string>;

static tv::Operand bound(const OperandTuple& operand) {
    const auto& [address, stride, dtype] = operand;
    return {reinterpret_cast<char*>(address), stride, tv::dtype_named(dtype)};
}

static void add(tv::Program& program, const std::string& kernel, const std::string& extent,
                const std::vector<OperandTuple>& operands, const std::vector<int64_t>& integers,
                const std::vector<double>& numbers, const std::optional<int64_t>& stream) {
    std::vector<tv::Operand> all;
    for (const OperandTuple& operand : operands) all.push_back(bound(operand));
    program.add(kernel, extent, all, integers, numbers, stream);
}

static void run(const tv::Program& program, tv::Team& team, int64_t num_tokens, int64_t num_sequences,
                int64_t num_rows, const std::optional<Seconds>& seconds, const std::vector<tv::Gate*>& gates) {
    if (num_tokens < 0 || num_sequences < 0 || num_rows < 0) {
        throw std::invalid_argument("run: num_tokens, num_sequences or num_rows is negative");
    }
    if (seconds && static_cast<int64_t>(seconds->size()) != program.num_instructions()) {
        throw std::invalid_argument("run: seconds has " + std::to_string(seconds->size()) + " elements, the program " +
                                    std::to_string(program.num_instructions()) + " instructions");
    }
    for (const tv::Gate* gate : gates) {
        if (gate == nullptr) throw std::invalid_argument("run: a gate is None");
        if (gate->num_slots() == 0) throw std::invalid_argument("run: a gate has no slots that something comes to");
    }
    if (gates.size() > tv::kMaxComing) {
        throw std::invalid_argument("run: " + std::to_string(gates.size()) + " gates are given, it takes at most " +
                                    std::to_string(tv::kMaxComing));
    }
    if (!gates.empty() && !program.waits()) {
        throw std::invalid_argument("run: gates are given, and no instruction of the program waits for a stream");
    }
    double* into = seconds ? seconds->data() : nullptr;
    const nb::gil_scoped_release release;
    program.run(team, num_tokens, num_sequences, num_rows, into, gates);
}

using HeadTuple = std::tuple<OperandTuple, OperandTuple, int64_t>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using Tokens = nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>;
using Histories = std::vector<std::pair<int64_t, uintptr_t>>;
using Logprobs = std::vector<std::tuple<int64_t, double, std::vector<std::pair<int32_t, double>>>>;

static std::tuple<Tokens, Logprobs, std::vector<int64_t>> choose(tv::Sampler& sampler, const Logits& logits,
                                                                 const std::vector<const tv::Draw*>& draws,
                                                                 const std::vector<int64_t>& num_tokens,
                                                                 const Histories& histories) {
    const size_t num_rows = draws.size();
    if (logits.shape(0) != num_rows || static_cast<int64_t>(logits.shape(1)) != sampler.vocab_size()) {
        throw std::invalid_argument("choose: logits are [" + std::to_string(logits.shape(0)) + ", " +
                                    std::to_string(logits.shape(1)) + "], wanted [" + std::to_string(num_rows) + ", " +
                                    std::to_string(sampler.vocab_size()) + "]");
    }
    if (logits.stride(1) != 1) throw std::invalid_argument("choose: the logits of a row are not side by side");
    if (num_tokens.size() != num_rows) {
        throw std::invalid_argument("choose: num_tokens has " + std::to_string(num_tokens.size()) + " rows, draws " +
                                    std::to_string(num_rows));
    }
    std::vector<tv::Row> rows(num_rows);
    for (size_t i = 0; i < num_rows; ++i) rows[i] = {draws[i], nullptr, num_tokens[i]};
    for (const auto& [row, address] : histories) rows.at(row).tokens = reinterpret_cast<const int32_t*>(address);
    for (size_t i = 0; i < num_rows; ++i) {
        if (rows[i].draw->reads_tokens() && rows[i].num_tokens > 0 && rows[i].tokens == nullptr) {
            throw std::invalid_argument("choose: row " + std::to_string(i) + " has penalties, and no history is given");
        }
    }
    std::vector<tv::Choice> choices;
    {
        const nb::gil_scoped_release release;
        sampler.choose(logits.data(), logits.stride(0), rows, choices);
    }
    auto tokens = std::make_unique<int32_t[]>(num_rows);
    Logprobs logprobs;
    std::vector<int64_t> unfit;
    for (size_t i = 0; i < num_rows; ++i) {
        tokens[i] = choices[i].token.value_or(0);
        if (!choices[i].token) {
            unfit.push_back(static_cast<int64_t>(i));
        } else if (rows[i].draw->num_logprobs) {
            logprobs.emplace_back(i, choices[i].logprob, std::move(choices[i].likeliest));
        }
    }
    int32_t* const made = tokens.release();
    const nb::capsule owner(made, [](void* memory) noexcept { delete[] static_cast<int32_t*>(memory); });
    return {Tokens(made, {num_rows}, owner), std::move(logprobs), std::move(unfit)};
}

NB_MODULE(_native, module) {
    // What a caller keeps until the interpreter ends, as a cached plan, is not a leak.
    nb::set_leak_warnings(false);
    nb::class_<tv::Team>(module, "Team")
        .def(nb::init<std::vector<std::optional<int>>>(), "cpus"_a)
        .def_prop_ro("num_threads", &tv::Team::num_threads);

    nb::class_<tv::Gate>(module, "Gate")
        .def(nb::init<double, int64_t, std::vector<int32_t>>(), "until_s"_a, "first"_a = 0,
             "slots"_a = std::vector<int32_t>())
        .def("advance", &tv::Gate::advance)
        .def("fail", &tv::Gate::fail)
        .def(
            "wait",
            [](tv::Gate& gate, uint32_t num_pieces) {
                const nb::gil_scoped_release release;
                return gate.wait(num_pieces);
            },
            "num_pieces"_a)
        .def_prop_ro("has_failed", &tv::Gate::has_failed)
        .def_prop_ro("num_pieces", &tv::Gate::num_pieces)
        .def_prop_ro("num_slots", &tv::Gate::num_slots)
        .def_prop_ro("num_waiting", &tv::Gate::num_waiting)
        .def_prop_ro("stalled_s", &tv::Gate::stalled_s);

    nb::class_<tv::Program>(module, "Program")
        .def("__init__",
             [](tv::Program* self, const std::optional<std::string>& target) {
                 new (self) tv::Program(target.value_or(""));
             },
             "target"_a = nb::none())
        .def_prop_ro("target", &tv::Program::target)
        .def_prop_ro("num_instructions", &tv::Program::num_instructions)
        .def("add", add, "kernel"_a, "extent"_a, "operands"_a, "integers"_a, "numbers"_a, "stream"_a = nb::none())
        .def("run", run, "team"_a, "num_tokens"_a, "num_sequences"_a, "num_rows"_a, "seconds"_a = nb::none(),
             "gates"_a = std::vector<tv::Gate*>());

    nb::class_<tv::Draw>(module, "Draw")
        .def("__init__",
             [](tv::Draw* self, double temperature, std::optional<int64_t> top_k, double top_p, double min_p,
                double repetition_penalty, double presence_penalty, double frequency_penalty,
                std::vector<std::pair<int32_t, double>> logit_bias, std::vector<int32_t> stop_ids, int64_t min_tokens,
                int64_t num_prompt, std::optional<int64_t> num_logprobs, uint64_t seed, uint64_t choice) {
                 new (self) tv::Draw{temperature, top_k.value_or(INT64_MAX), top_p, min_p, repetition_penalty,
                                     presence_penalty, frequency_penalty, std::move(logit_bias), std::move(stop_ids),
                                     min_tokens, num_prompt, num_logprobs, seed, choice};
             },
             nb::kw_only(), "temperature"_a, "top_k"_a.none(), "top_p"_a, "min_p"_a, "repetition_penalty"_a,
             "presence_penalty"_a, "frequency_penalty"_a, "logit_bias"_a, "stop_ids"_a, "min_tokens"_a,
             "num_prompt"_a, "num_logprobs"_a.none(), "seed"_a, "choice"_a)
        .def_prop_ro("reads_tokens", &tv::Draw::reads_tokens);

    nb::class_<tv::Sampler>(module, "Sampler")
        .def("__init__",
             [](tv::Sampler* self, tv::Team& team, int64_t vocab_size, const std::optional<std::string>& target,
                const std::optional<HeadTuple>& head) {
                 std::optional<tv::Head> of_rows;
                 if (head) of_rows = tv::Head{bound(std::get<0>(*head)), bound(std::get<1>(*head)), std::get<2>(*head)};
                 new (self) tv::Sampler(team, vocab_size, target.value_or(""), of_rows);
             },
             "team"_a, "vocab_size"_a, "target"_a = nb::none(), "head"_a = nb::none(), nb::keep_alive<1, 2>())
        .def_prop_ro("vocab_size", &tv::Sampler::vocab_size)
        .def("choose", choose, "logits"_a, "draws"_a, "num_tokens"_a, "histories"_a);

    module.def("uniform", tv::uniform, "seed"_a, "choice"_a, "position"_a, "attempt"_a = 0);
    module.def("targets", [] {
        std::vector<std::string> names;
        for (const tv::Target& target : tv::supported_targets()) names.emplace_back(target.name);
        return names;
    });
    module.def(
        "read_bandwidth",
        [](tv::Team& team, int64_t num_bytes, int repeats) {
            const nb::gil_scoped_release release;
            return tv::read_bandwidth(team, num_bytes, repeats);
        },
        "team"_a, "num_bytes"_a, "repeats"_a);
    module.def(
        "multiply_add_peak",
        [](tv::Team& team, const std::optional<std::string>& target, const std::string& weights, int repeats) {
            const nb::gil_scoped_release release;
            return tv::multiply_add_peak(team, tv::target_named(target.value_or("")), tv::dtype_named(weights), repeats);
        },
        "team"_a, "target"_a, "weights"_a, "repeats"_a);
    // What malloc holds and nobody uses goes back to the host, as far as the C library can.
    module.def("trim_heap", [] {
#if defined(__GLIBC__)
        malloc_trim(0);
#endif
    });
    bind_io(module);
}
