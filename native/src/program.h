// A list of instructions bound to addresses, and its run: one call computes a whole step.
// Everything that can be wrong with an instruction is found when it is added; a run cannot fail.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dispatch.h"
#include "gate.h"
#include "kernels.h"
#include "team.h"

namespace tv {

enum class Extent { tokens, rows };

class Program {
public:
    // Best target for an empty name. Throws std::invalid_argument for one that is not supported.
    explicit Program(const std::string& target);

    const char* target() const { return target_.name; }
    int64_t num_instructions() const { return static_cast<int64_t>(instructions_.size()); }

    // `stream`: which of the streams that may come while a run computes the instruction reads; none for what reads none.
    // Throws std::invalid_argument: what is wrong with the call, and what the kernel takes.
    void add(const std::string& kernel, const std::string& extent, const std::vector<Operand>& operands,
             const std::vector<int64_t>& integers, const std::vector<double>& numbers,
             const std::optional<int64_t>& stream = std::nullopt);

    // Does any of its instructions wait for a stream?
    bool waits() const;

    // `seconds` [num_instructions] or null: the wall time of each instruction is added to it. `gates`, each with slots:
    // what is still coming to sequences of this run, whose tokens are all behind it.
    void run(Team& team, int64_t num_tokens, int64_t num_sequences, int64_t num_rows, double* seconds,
             const std::vector<Gate*>& gates = {}) const;

private:
    struct Instruction {
        const Kernel* kernel;
        Extent extent;
        Call call;
        std::optional<int64_t> stream;
    };

    const Target& target_;
    std::vector<Instruction> instructions_;
    const std::unique_ptr<Scratch, void (*)(void*)> scratch_;  // never touched, it costs addresses and no memory
};

// Throws std::invalid_argument for a name that is none.
DType dtype_named(const std::string& name);

}  // namespace tv
