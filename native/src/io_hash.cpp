// XXH3-64 with the vectors of this target, from the library of its author (native/vendor/xxhash).
#include "io_hash.h"

#include "simd.h"

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 writes `__m512i undefined = undefined` in its own headers, then warns of it where they are inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define XXH_INLINE_ALL  // static functions: no two targets may share one
#define XXH_STATIC_LINKING_ONLY
#include "xxhash.h"

namespace tv::TV_TARGET {

static_assert(sizeof(XXH3_state_t) <= sizeof(HashState) && alignof(XXH3_state_t) <= alignof(HashState));

static XXH3_state_t* of(HashState& state) { return reinterpret_cast<XXH3_state_t*>(state.bytes); }

static void reset(HashState& state) { XXH3_64bits_reset(of(state)); }

static void update(HashState& state, const char* address, size_t num_bytes) {
    XXH3_64bits_update(of(state), address, num_bytes);
}

static uint64_t digest(const HashState& state) {
    return XXH3_64bits_digest(reinterpret_cast<const XXH3_state_t*>(state.bytes));
}

extern const HashTable kHash = {reset, update, digest};

}  // namespace tv::TV_TARGET
