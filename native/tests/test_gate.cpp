// Gates: who waits for pieces goes on with them, and is never kept by what does not come.
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

static bool refuses(const std::string& kernel, int64_t num_operands, const std::vector<int64_t>& integers,
                    int64_t stream) {
    Matrix a(DType::float32, 1, 16);
    Program program("");
    try {
        program.add(kernel, "tokens", std::vector<Operand>(num_operands, a.operand()), integers, {}, stream);
    } catch (const std::invalid_argument&) {
        return true;
    }
    return false;
}

void test_gate() {
    // The second piece is brought only once somebody was seen to wait for it.
    Gate gate(now_s() + 60);
    gate.advance();
    int brought = 0;
    std::thread bringer([&] {
        while (gate.num_waiting() == 0) std::this_thread::yield();
        brought = 2;
        gate.advance();
    });
    check(gate.wait(1) && brought == 0, "who waits for what has come goes on at once");
    check(gate.wait(2) && brought == 2, "and sees what was done before the piece came");
    bringer.join();
    check(!gate.has_failed() && gate.num_pieces() == 2 && gate.num_waiting() == 0, "the gate has two pieces");
    check(gate.stalled_s() > 0, "and was waited at");

    Gate late(now_s() + 0.01);
    check(!late.wait(1) && late.has_failed() && late.stalled_s() > 0, "past its deadline a gate fails, and lets go");
    const double stalled_s = late.stalled_s();
    check(!late.wait(1) && late.stalled_s() == stalled_s, "a gate that has failed keeps nobody");

    Gate failing(1e300);  // no deadline at all
    std::thread failer([&] {
        while (failing.num_waiting() == 0) std::this_thread::yield();
        failing.fail();
    });
    check(!failing.wait(3), "who waits is told that no more comes");
    failer.join();
    failing.advance();
    check(failing.has_failed() && failing.num_pieces() == 1 && !failing.wait(1), "a piece after it mends nothing");

    check(refuses("add", 3, {16}, 0), "a stream is refused for a kernel that does not wait");
}

}  // namespace tv::test
