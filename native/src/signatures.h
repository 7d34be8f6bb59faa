// What each kernel takes, as data, and the check of a call against it.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace tv {

struct OperandRule {
    const char* name;
    std::vector<DType> dtypes;
    bool is_optional = false;
};

struct Signature {
    const char* kernel;
    const Kernel* KernelTable::*entry;
    std::vector<const char*> extents;
    std::vector<OperandRule> operands;
    std::vector<const char*> integers;
    std::vector<const char*> numbers;
    // What is wrong with the sizes of a call whose counts and dtypes are right; empty if nothing is.
    std::string (*refuse)(const Call&) = nullptr;
    bool waits = false;  // for blocks of a stream that come while a step runs
};

// Throws std::invalid_argument that lists the kernels.
const Signature& signature_named(const std::string& kernel);

// Throws std::invalid_argument: what the call has, what the kernel takes.
Call checked_call(const Signature& signature, const std::string& extent, const std::vector<Operand>& operands,
                  const std::vector<int64_t>& integers, const std::vector<double>& numbers);

}  // namespace tv
