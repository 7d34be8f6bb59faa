// What is true of a file and of memory here and now: what of a file is in the page cache, and where pages shall come from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tv {

struct Residency {
    double share;     // of the bytes, 0 to 1
    std::string how;  // it was found: cachestat, mincore or samples
};

// About how much of a range of an open file is in the page cache; nothing where no way of asking works.
std::optional<Residency> residency(int file, int64_t offset, int64_t num_bytes);

// Pages of the range that are not there yet come from the NUMA node while it has any. Returns 0 or an errno.
int prefer_node(void* address, int64_t num_bytes, int node);

}  // namespace tv
