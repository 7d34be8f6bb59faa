// The kernels of this target, in one table.
#include "target.h"

namespace tv::TV_TARGET {

extern const KernelTable kTable = {
    &embed,    &rms_norm,      &add,       &add_rms_norm, &linear,    &rope_angles, &rope,
    &kv_store, &rope_kv_store, &attention, &silu_mul,     &take_rows, &cast,
    &add_rms_norm_cast, &top_k, &router_topk, &moe_permute, &grouped_linear, &moe_unpermute, &sample_passes,
    read_bytes, multiply_add, multiply_pairs};

}  // namespace tv::TV_TARGET
