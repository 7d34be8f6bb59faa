// Which targets this build has and this CPU can run.
#pragma once

#include <string>
#include <vector>

#include "io_hash.h"
#include "kernels.h"

namespace tv {

struct Target {
    const char* name;
    const KernelTable* kernels;
    const HashTable* hash;
};

// Best first; never empty, since every build has "scalar".
const std::vector<Target>& supported_targets();

// The best one for an empty name. Throws std::invalid_argument that lists the supported ones.
const Target& target_named(const std::string& name);

}  // namespace tv
