#include "dispatch.h"

#include <stdexcept>

namespace tv {

namespace avx512bf16 { extern const KernelTable kTable; extern const HashTable kHash; }
namespace avx512 { extern const KernelTable kTable; extern const HashTable kHash; }
namespace avx2 { extern const KernelTable kTable; extern const HashTable kHash; }
namespace neon { extern const KernelTable kTable; extern const HashTable kHash; }
namespace scalar { extern const KernelTable kTable; extern const HashTable kHash; }

static std::vector<Target> find_targets() {
    std::vector<Target> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (has_avx512 && __builtin_cpu_supports("avx512bf16")) {
        found.push_back({"avx512bf16", &avx512bf16::kTable, &avx512bf16::kHash});
    }
    if (has_avx512) found.push_back({"avx512", &avx512::kTable, &avx512::kHash});
    if (has_avx2) found.push_back({"avx2", &avx2::kTable, &avx2::kHash});
#elif defined(__aarch64__)
    found.push_back({"neon", &neon::kTable, &neon::kHash});  // part of the architecture
#endif
    found.push_back({"scalar", &scalar::kTable, &scalar::kHash});
    return found;
}

const std::vector<Target>& supported_targets() {
    static const std::vector<Target> targets = find_targets();
    return targets;
}

const Target& target_named(const std::string& name) {
    std::string known;
    for (const Target& target : supported_targets()) {
        if (name.empty() || name == target.name) return target;
        known += (known.empty() ? "" : ", ") + std::string(target.name);
    }
    throw std::invalid_argument("target: '" + name + "' is not one this CPU and build support (" + known + ")");
}

const HashTable& hash_table() { return *supported_targets().front().hash; }

}  // namespace tv
