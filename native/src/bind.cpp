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

static void add(tv::Program& program, const std::string& kernel, const std::string& extent,
                const std::vector<OperandTuple>& operands, const std::vector<int64_t>& integers,
                const std::vector<double>& numbers) {
    std::vector<tv::Operand> bound;
    for (const auto& [address, stride, dtype] : operands) {
        bound.push_back({reinterpret_cast<char*>(address), stride, tv::dtype_named(dtype)});
    }
    program.add(kernel, extent, bound, integers, numbers);
}

static void run(const tv::Program& program, tv::Team& team, int64_t num_tokens, int64_t num_sequences,
                int64_t num_rows, const std::optional<Seconds>& seconds) {
    if (num_tokens < 0 || num_sequences < 0 || num_rows < 0) {
        throw std::invalid_argument("run: num_tokens, num_sequences or num_rows is negative");
    }
    if (seconds && static_cast<int64_t>(seconds->size()) != program.num_instructions()) {
        throw std::invalid_argument("run: seconds has " + std::to_string(seconds->size()) + " elements, the program " +
                                    std::to_string(program.num_instructions()) + " instructions");
    }
    double* into = seconds ? seconds->data() : nullptr;
    const nb::gil_scoped_release release;
    program.run(team, num_tokens, num_sequences, num_rows, into);
}

using Logits = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using RowTuple = std::tuple<const tv::Draw*, uintptr_t, int64_t>;
using ChoiceTuple = std::tuple<int32_t, std::optional<double>, std::vector<std::pair<int32_t, double>>>;

static std::vector<std::optional<ChoiceTuple>> choose(tv::Sampler& sampler, const Logits& logits,
                                                      const std::vector<RowTuple>& asked) {
    if (logits.shape(0) != asked.size() || static_cast<int64_t>(logits.shape(1)) != sampler.vocab_size()) {
        throw std::invalid_argument("choose: logits are [" + std::to_string(logits.shape(0)) + ", " +
                                    std::to_string(logits.shape(1)) + "], wanted [" + std::to_string(asked.size()) +
                                    ", " + std::to_string(sampler.vocab_size()) + "]");
    }
    if (logits.stride(1) != 1) throw std::invalid_argument("choose: the logits of a row are not side by side");
    std::vector<tv::Row> rows;
    for (const auto& [draw, tokens, num_tokens] : asked) {
        rows.push_back({draw, reinterpret_cast<const int32_t*>(tokens), num_tokens});
    }
    std::vector<tv::Choice> choices;
    {
        const nb::gil_scoped_release release;
        sampler.choose(logits.data(), logits.stride(0), rows, choices);
    }
    std::vector<std::optional<ChoiceTuple>> found;
    for (size_t i = 0; i < choices.size(); ++i) {
        tv::Choice& choice = choices[i];
        if (!choice.token) {
            found.emplace_back();
            continue;
        }
        const bool has_logprob = rows[i].draw->num_logprobs.has_value();
        found.emplace_back(std::in_place, *choice.token, has_logprob ? std::optional(choice.logprob) : std::nullopt,
                           std::move(choice.likeliest));
    }
    return found;
}

NB_MODULE(_native, module) {
    // What a caller keeps until the interpreter ends, as a cached plan, is not a leak.
    nb::set_leak_warnings(false);
    nb::class_<tv::Team>(module, "Team")
        .def(nb::init<std::vector<std::optional<int>>>(), "cpus"_a)
        .def_prop_ro("num_threads", &tv::Team::num_threads);

    nb::class_<tv::Program>(module, "Program")
        .def("__init__",
             [](tv::Program* self, const std::optional<std::string>& target) {
                 new (self) tv::Program(target.value_or(""));
             },
             "target"_a = nb::none())
        .def_prop_ro("target", &tv::Program::target)
        .def_prop_ro("num_instructions", &tv::Program::num_instructions)
        .def("add", add, "kernel"_a, "extent"_a, "operands"_a, "integers"_a, "numbers"_a)
        .def("run", run, "team"_a, "num_tokens"_a, "num_sequences"_a, "num_rows"_a, "seconds"_a = nb::none());

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
             "num_prompt"_a, "num_logprobs"_a.none(), "seed"_a, "choice"_a);

    nb::class_<tv::Sampler>(module, "Sampler")
        .def("__init__",
             [](tv::Sampler* self, tv::Team& team, int64_t vocab_size, const std::optional<std::string>& target) {
                 new (self) tv::Sampler(team, vocab_size, target.value_or(""));
             },
             "team"_a, "vocab_size"_a, "target"_a = nb::none(), nb::keep_alive<1, 2>())
        .def_prop_ro("vocab_size", &tv::Sampler::vocab_size)
        .def("choose", choose, "logits"_a, "rows"_a);

    module.def("uniform", tv::uniform, "seed"_a, "choice"_a, "position"_a);
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
        [](tv::Team& team, const std::optional<std::string>& target, int repeats) {
            const nb::gil_scoped_release release;
            return tv::multiply_add_peak(team, tv::target_named(target.value_or("")), repeats);
        },
        "team"_a, "target"_a, "repeats"_a);
    // What malloc holds and nobody uses goes back to the host, as far as the C library can.
    module.def("trim_heap", [] {
#if defined(__GLIBC__)
        malloc_trim(0);
#endif
    });
    bind_io(module);
}
