// Gates: a step goes on with what it has, waits for what it needs, and is never kept by what does not come.
#include <chrono>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "program.h"
#include "suites.h"

namespace tv::test {

static double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// first = a + a, a wait for one piece, second = b + b.
struct Waiting {
    Matrix a{DType::float32, 3, 40}, b{DType::float32, 3, 40}, first{DType::float32, 3, 40},
        second{DType::float32, 3, 40};
    Program program{""};

    Waiting() {
        a.fill(1);
        b.fill(0);
        first.fill(0);
        second.fill(0);
        program.add("add", "tokens", {a.operand(), a.operand(), first.operand()}, {40}, {});
        program.add_wait(1);
        program.add("add", "tokens", {b.operand(), b.operand(), second.operand()}, {40}, {});
    }
};

// What is before the wait is computed without the piece: the piece is brought only once that was seen.
static void check_order(Team& team, const std::string& name) {
    Waiting waiting;
    Gate gate(now_s() + 60);
    std::thread bringer([&] {
        const volatile float* seen = reinterpret_cast<float*>(waiting.first.operand(2).address) + 39;
        while (*seen != 2.0f) std::this_thread::yield();
        waiting.b.fill(3);
        gate.advance();
    });
    waiting.program.run(team, 3, 1, 0, nullptr, {&gate});
    bringer.join();
    check(waiting.second.at(0, 0) == 6 && waiting.second.at(2, 39) == 6, name + ": what needs the piece waits for it");
    check(!gate.has_failed() && gate.num_pieces() == 1, name + ": the gate has one piece");
}

void test_gate(const Setting& setting) {
    check_order(setting.alone, "one thread");
    check_order(setting.pair, "two threads");

    Waiting waiting;
    waiting.program.run(setting.pair, 3, 1, 0, nullptr);
    check(waiting.second.at(1, 1) == 0 && waiting.first.at(1, 1) == 2, "without gates a run waits for nothing");

    Gate late(now_s() + 0.01);
    double seconds[3] = {};
    waiting.program.run(setting.pair, 3, 1, 0, seconds, {&late});
    check(late.has_failed() && late.stalled_s() > 0 && seconds[1] > 0, "past its deadline a gate fails, and lets go");
    const double stalled_s = late.stalled_s();
    waiting.program.run(setting.pair, 3, 1, 0, nullptr, {&late});
    check(late.stalled_s() == stalled_s, "a gate that has failed keeps nobody");

    Gate failing(1e300);  // no deadline at all
    std::thread failer([&] { failing.fail(); });
    waiting.program.run(setting.pair, 3, 1, 0, nullptr, {&failing});
    failer.join();
    failing.advance();
    check(failing.has_failed() && failing.num_pieces() == 1, "a piece after the failure mends nothing");

    bool refuses = false;
    try {
        waiting.program.add_wait(0);
    } catch (const std::invalid_argument&) {
        refuses = true;
    }
    check(refuses, "a wait for nothing is refused");
}

}  // namespace tv::test
