// The module trivet._native: types across, errors across, the GIL released while a team works. Nothing else.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "roofline.h"
#include "program.h"

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

NB_MODULE(_native, module) {
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
}
