// XXH3-64 of bytes that come in pieces, compiled once per target like the kernels: with their vectors it hashes faster
// than memory delivers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tv {

// What XXH3 keeps between pieces, in a size that does not need its header.
struct alignas(64) HashState {
    unsigned char bytes[640];
};

struct HashTable {
    void (*reset)(HashState& state);
    void (*update)(HashState& state, const char* address, size_t num_bytes);
    uint64_t (*digest)(const HashState& state);
};

// Of the best target this CPU runs: all of them give the same digest.
const HashTable& hash_table();

}  // namespace tv
