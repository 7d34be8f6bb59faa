// Every kernel on every target this CPU runs: against a slow double reference, and bit by bit against itself.
//   kernel_tests [--small]
#include <cstring>

#include "check.h"
#include "dispatch.h"
#include "suites.h"

int main(int argc, char** argv) {
    using namespace tv::test;
    const bool is_small = argc > 1 && std::strcmp(argv[1], "--small") == 0;
    tv::Team alone({std::nullopt});
    tv::Team pair({std::nullopt, std::nullopt});
    const Setting setting = {alone, pair, is_small};
    std::printf("targets:");
    for (const tv::Target& target : tv::supported_targets()) std::printf(" %s", target.name);
    std::printf("\n");
    test_rows(setting);
    test_attention(setting);
    test_coming(setting);
    test_experts(setting);
    test_distribution(setting);
    test_gate();
    test_reading(setting);
    test_team(setting);
    std::printf("digest: %016llx (the same on every host)\n", static_cast<unsigned long long>(digest));
    std::printf("%d passed, %d failed\n", counts.passed, counts.failed);
    return counts.failed == 0 ? 0 : 1;
}
