// A list of instructions bound to addresses, and its run: one call computes a whole step.
// Everything that can be wrong with an instruction is found when it is added; a run cannot fail.
#pragma once

#include <memory>
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

    // Throws std::invalid_argument: what is wrong with the call, and what the kernel takes.
    void add(const std::string& kernel, const std::string& extent, const std::vector<Operand>& operands,
             const std::vector<int64_t>& integers, const std::vector<double>& numbers);

    // Before the instructions after it, a run waits for so many pieces at each of its gates.
    void add_wait(int64_t num_pieces);

    // `seconds` [num_instructions] or null: the wall time of each instruction is added to it.
    void run(Team& team, int64_t num_tokens, int64_t num_sequences, int64_t num_rows, double* seconds,
             const std::vector<Gate*>& gates = {}) const;

private:
    struct Instruction {
        const Kernel* kernel;  // null: a wait
        Extent extent;
        Call call;
        uint32_t num_pieces;  // of a wait
    };

    const Target& target_;
    std::vector<Instruction> instructions_;
    const std::unique_ptr<Scratch, void (*)(void*)> scratch_;  // never touched, it costs addresses and no memory
};

// Throws std::invalid_argument for a name that is none.
DType dtype_named(const std::string& name);

}  // namespace tv
