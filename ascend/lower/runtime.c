// What lowered kernels call and LLVM does not bring: MLIR's strided copy, and rounding to bfloat16.
// Descriptors are MLIR's: rank and a pointer to {allocated, aligned, offset, sizes[rank], strides[rank]}.
#include <stdint.h>
#include <string.h>

enum { kMaxRank = 8 };

typedef struct {
    int64_t rank;
    int64_t *descriptor;
} Unranked;

static void copy_axis(int64_t item, int64_t rank, const int64_t *sizes, char *to, const int64_t *to_strides,
                      const char *from, const int64_t *from_strides) {
    if (rank == 0) {
        memcpy(to, from, item);
        return;
    }
    if (rank == 1 && *to_strides == 1 && *from_strides == 1) {
        memcpy(to, from, item * *sizes);
        return;
    }
    for (int64_t i = 0; i < *sizes; i++)
        copy_axis(item, rank - 1, sizes + 1, to + i * *to_strides * item, to_strides + 1,
                  from + i * *from_strides * item, from_strides + 1);
}

void memrefCopy(int64_t item, Unranked *from, Unranked *to) {
    int64_t rank = from->rank;
    if (rank > kMaxRank) __builtin_trap();
    int64_t *source = from->descriptor, *target = to->descriptor;
    copy_axis(item, rank, source + 3, (char *)target[1] + target[2] * item, target + 3 + rank,
              (const char *)source[1] + source[2] * item, source + 3 + rank);
}

// compiler-rt has this one; the libgcc of Debian 12 does not. To nearest, ties to even, NaN stays a NaN.
__bf16 __truncsfbf2(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    int is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    uint16_t high = is_nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    __bf16 rounded;
    memcpy(&rounded, &high, sizeof rounded);
    return rounded;
}
