// What the machine could do at best: the figures every measured speed is a fraction of.
#pragma once

#include <vector>

#include "dispatch.h"
#include "team.h"

namespace tv {

// Bytes per second of reading `num_bytes` of our own memory, once per repeat.
// Throws std::bad_alloc, and std::invalid_argument for less than 1 MiB or no repeats.
std::vector<double> read_bandwidth(Team& team, int64_t num_bytes, int repeats);

// Operations per second (two per multiply-add) as of products with weights in a format, once per repeat. Sums are
// float32; what bfloat16 and int8 are multiplied with is bfloat16.
std::vector<double> multiply_add_peak(Team& team, const Target& target, DType weights, int repeats);

}  // namespace tv
