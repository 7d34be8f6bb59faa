// What the machine could do, measured with this target's vectors: reading memory, and multiplying and adding.
#include "block.h"
#include "panels.h"
#include "target.h"

namespace tv::TV_TARGET {

constexpr int64_t kLine = 4 * kBlock;

// Reads whole 64-byte lines; a remainder is left unread.
void read_bytes(const char* address, int64_t num_bytes) {
    const int64_t num_blocks = num_bytes / kLine;
    Words found[kParts] = {};
    for (int64_t i = 0; i < num_blocks; ++i) {
        TV_UNROLL for (int p = 0; p < kParts; ++p) found[p] |= load_words(address + i * kLine + p * 4 * kLanes);
    }
    // The compiler must believe that what was read matters.
    for (int p = 0; p < kParts; ++p) asm volatile("" : : "m"(found[p]));
}

// Returns the operations done, two for each lane of each fma that the chain stands for.
template <class Chain>
static int64_t multiply(int64_t num_rounds) {
    constexpr int chains = 12;  // more than latency times issue width on any core we know
    Vec sums[chains];
    for (int i = 0; i < chains; ++i) sums[i] = broadcast(static_cast<float>(i));
    typename Chain::Element ones[kBlock];
    Chain::take(ones, broadcast_block(1.0f));
    typename Chain::Factor factor = Chain::factor(ones[0]);
    asm volatile("" : "+m"(factor));
    for (int64_t round = 0; round < num_rounds; ++round) {
        TV_UNROLL for (int i = 0; i < chains; ++i) sums[i] = Chain::add(factor, factor, sums[i]);
    }
    for (int i = 0; i < chains; ++i) asm volatile("" : : "m"(sums[i]));
    return num_rounds * chains * kLanes * 2 * Chain::kInputs;
}

int64_t multiply_add(int64_t num_rounds) { return multiply<Singles>(num_rounds); }
int64_t multiply_pairs(int64_t num_rounds) { return multiply<Pairs>(num_rounds); }

}  // namespace tv::TV_TARGET
