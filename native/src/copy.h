// Memory to memory, by a whole team.
#pragma once

#include <cstdint>
#include <vector>

#include "team.h"

namespace tv {

struct Range {
    char* to;
    const char* from;
    int64_t num_bytes;
};

// Copies every range. Whoever asks has checked that none overlaps another's destination.
void copy_ranges(Team& team, const std::vector<Range>& ranges);

}  // namespace tv
