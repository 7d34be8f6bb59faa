#include "io_bind.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <system_error>
#include <tuple>

#include "io_facts.h"
#include "io_mapping.h"
#include "io_reading.h"
#include "io_ring.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

using ExtentTuple = std::tuple<int, int64_t, int64_t, uintptr_t>;
using SpanTuple = std::tuple<int64_t, int64_t, int64_t>;

using CheckedTuple = std::tuple<uintptr_t, int64_t, uint64_t>;

static std::vector<tv::Extent> extents_of(const std::vector<ExtentTuple>& extents) {
    std::vector<tv::Extent> ranges;
    for (const auto& [file, offset, num_bytes, address] : extents) {
        ranges.push_back({file, offset, num_bytes, reinterpret_cast<char*>(address)});
    }
    return ranges;
}

static void begin(tv::Reading* self, const std::vector<ExtentTuple>& extents, const std::vector<SpanTuple>& spans,
                  int64_t block, int64_t piece_bytes, int num_workers, int depth, bool is_mapped) {
    std::vector<tv::Span> hashed;
    for (const auto& [extent, first, num_bytes] : spans) hashed.push_back({extent, first, num_bytes});
    new (self) tv::Reading(extents_of(extents), std::move(hashed), {block, piece_bytes, num_workers, depth, is_mapped});
}

static void bind_mapping(nb::module_& module) {
    nb::class_<tv::Mapping>(module, "Mapping")
        .def("__init__",
             [](tv::Mapping* self, const std::vector<ExtentTuple>& extents, std::vector<std::string> paths) {
                 new (self) tv::Mapping(extents_of(extents), std::move(paths));
             },
             "extents"_a, "paths"_a)
        .def("take_in",
             [](tv::Mapping& self, const std::vector<CheckedTuple>& checked, std::optional<int> node) {
                 std::vector<tv::Checked> wanted;
                 for (const auto& [address, num_bytes, xxh3] : checked) {
                     wanted.push_back({reinterpret_cast<char*>(address), num_bytes, xxh3});
                 }
                 self.take_in(std::move(wanted), node);
             },
             "checked"_a, "node"_a.none())
        .def("wait", &tv::Mapping::wait, "seconds"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("stop", &tv::Mapping::stop, nb::call_guard<nb::gil_scoped_release>());
    module.def("any_damage", []() -> std::optional<std::tuple<std::string, int64_t, bool>> {
        const std::optional<tv::Damage> damage = tv::any_damage();
        if (!damage) return std::nullopt;
        return std::tuple(damage->path, damage->offset, damage->is_cut);
    });
}

class Hash {
public:
    Hash() { tv::hash_table().reset(state_); }
    void update(uintptr_t address, int64_t num_bytes) {
        const nb::gil_scoped_release release;
        tv::hash_table().update(state_, reinterpret_cast<const char*>(address), static_cast<size_t>(num_bytes));
    }
    uint64_t digest() const { return tv::hash_table().digest(state_); }

private:
    tv::HashState state_;
};

void bind_io(nb::module_& module) {
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const std::system_error& error) {
            errno = error.code().value();
            PyErr_SetFromErrno(PyExc_OSError);
        }
    });

    nb::class_<tv::Reading>(module, "Reading")
        .def("__init__", begin, "extents"_a, "spans"_a, nb::kw_only(), "block"_a, "piece_bytes"_a, "num_workers"_a,
             "depth"_a, "is_mapped"_a = false)
        .def("wait", &tv::Reading::wait, "seconds"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("cancel", &tv::Reading::cancel, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("failure",
                     [](const tv::Reading& self) -> std::optional<std::tuple<int64_t, int64_t, int>> {
                         const std::optional<tv::ReadFailure> failure = self.failure();
                         if (!failure) return std::nullopt;
                         return std::tuple(failure->extent, failure->offset, failure->error);
                     })
        .def_prop_ro("digests", &tv::Reading::digests)
        .def_prop_ro("times",
                     [](const tv::Reading& self) {
                         std::vector<std::tuple<double, double, int>> times;
                         for (const tv::ExtentTimes& each : self.times()) {
                             times.emplace_back(each.begin, each.end, each.worker);
                         }
                         return times;
                     })
        .def_prop_ro("bytes_read", &tv::Reading::bytes_read)
        .def_prop_ro("hash_seconds", &tv::Reading::hash_seconds);

    bind_mapping(module);

    nb::class_<Hash>(module, "Hash")
        .def(nb::init<>())
        .def("update", &Hash::update, "address"_a, "num_bytes"_a)
        .def("digest", &Hash::digest);

    module.def("ring_refusal", &tv::ring_refusal);
    module.def(
        "residency",
        [](int file, int64_t offset, int64_t num_bytes) -> std::optional<std::tuple<double, std::string>> {
            if (num_bytes < 1) return std::nullopt;
            const std::optional<tv::Residency> found = tv::residency(file, offset, num_bytes);
            if (!found) return std::nullopt;
            return std::tuple(found->share, found->how);
        },
        "file"_a, "offset"_a, "num_bytes"_a);
    module.def(
        "prefer_node",
        [](uintptr_t address, int64_t num_bytes, int node) {
            return tv::prefer_node(reinterpret_cast<void*>(address), num_bytes, node);
        },
        "address"_a, "num_bytes"_a, "node"_a);
}
