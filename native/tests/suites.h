// The suites of kernel_tests, and what they run on.
#pragma once

#include "team.h"

namespace tv::test {

struct Setting {
    Team& alone;  // one thread
    Team& pair;   // two
    bool is_small;  // under an emulator: the same claims on smaller sizes
};

void test_rows(const Setting& setting);       // kernels whose rows are independent
void test_attention(const Setting& setting);  // kernels that read or write the KV cache
void test_coming(const Setting& setting);     // attention while blocks of the cache are coming
void test_experts(const Setting& setting);     // choices of a row, rows ordered by expert
void test_gate();                             // waiting for pieces
void test_distribution(const Setting& setting);  // what is kept and drawn of a row of logits
void test_reading(const Setting& setting);    // files into memory
void test_team(const Setting& setting);

}  // namespace tv::test
