// Attention over blocks that are still coming: it reads each only once it has come, works on those that are here
// meanwhile, makes the same bits, and ends where no more will come.
#include <thread>

#include "kv_cases.h"

namespace tv::test {

// A batch whose first sequence has blocks that are still coming, and the answer where all are there.
struct Case {
    const Target& target;
    Sizes sizes;
    Random random;
    Batch batch;
    History history;
    Matrix q, whole, wanted, cache, out;
    const double scale = 0.25;

    Case(const Target& on, Team& team, const Sizes& of, const std::vector<int64_t>& seen,
         const std::vector<int64_t>& fresh)
        : target(on), sizes(of), random(of.head_dim + fresh[0]), batch(random, seen, fresh, of.slot_tokens),
          history(random, of, seen), q(DType::float32, batch.num_tokens(), of.num_heads * of.head_dim),
          whole(written_cache(of, batch, history, INT64_MAX)), wanted(DType::float32, q.rows(), q.width()),
          cache(written_cache(of, batch, history, INT64_MAX)), out(DType::float32, q.rows(), q.width()) {
        q.fill_random(random, 2.0);
        attend(target, team, sizes, batch, q, whole, wanted, scale);
        out.fill(std::nan(""));
    }

    int32_t slot(int64_t sequence, int64_t place) const {
        return static_cast<int32_t>(batch.slots.at(sequence, place));
    }
    // The slots that come: from `first` on, up to those of the sequence's own new tokens.
    std::vector<int32_t> slots(int64_t sequence, int64_t first) const {
        std::vector<int32_t> found;
        const int64_t end = (batch.seen[sequence] - batch.fresh[sequence]) / sizes.slot_tokens;
        for (int64_t place = first; place < end; ++place) found.push_back(slot(sequence, place));
        return found;
    }
    // From here on nobody may read what is there.
    void take_away(int32_t slot) {
        for (int64_t i = 0; i < sizes.stream_elements(); ++i) {
            cache.set(slot, sizes.stream_elements() + i, sizes.dtype == DType::int8 ? -1 : std::nan(""));
        }
    }
    void bring(int32_t slot) {
        for (int64_t i = 0; i < sizes.stream_elements(); ++i) {
            const int64_t place = sizes.stream_elements() + i;
            cache.set(slot, place, whole.at(slot, place));
        }
    }
    bool is_right(int64_t first_token) {
        const int64_t rows = q.rows() - first_token;
        return out.contents(first_token, rows) == wanted.contents(first_token, rows);
    }
    std::string text() const {
        return sizes.text() + ", " + std::to_string(batch.fresh[0]) + " tokens, on " + target.name + ": ";
    }
};

// Each piece comes only once somebody waits for it. What was here from the start is gone from the first wait of all
// threads on, unless there is so little room that it is gone through more than once.
static void test_lockstep(Team& team, const Target& target, const Sizes& sizes, int64_t fresh, int64_t num_idle) {
    Case it(target, team, sizes, {1104 + fresh, 5, 700}, {fresh, 1, 3});
    const int64_t first = 576 / sizes.slot_tokens;
    const std::vector<int32_t> slots = it.slots(0, first);
    for (const int32_t slot : slots) it.take_away(slot);
    Gate gate(1e300, first, slots);
    for (size_t i = 0; i < slots.size(); ++i) gate.advance();  // the stream that this program does not read
    std::vector<std::unique_ptr<Gate>> idle;  // of sequences that are in no run: less room for each that is
    std::vector<Gate*> gates = {&gate};
    for (int64_t i = 0; i < num_idle; ++i) {
        idle.push_back(std::make_unique<Gate>(1e300, 0, std::vector<int32_t>{-1}));
        gates.push_back(idle.back().get());
    }
    std::thread bringer([&] {
        while (gate.num_waiting() < team.num_threads()) std::this_thread::yield();
        for (int64_t place = 0; num_idle == 0 && place < 512 / sizes.slot_tokens; ++place) {
            it.take_away(it.slot(0, place));
        }
        for (const int32_t slot : slots) {
            while (gate.num_waiting() == 0) std::this_thread::yield();
            it.bring(slot);
            gate.advance();
        }
    });
    attend(target, team, sizes, it.batch, it.q, it.cache, it.out, it.scale, gates);
    bringer.join();
    const std::string name = "attention as blocks come, " + it.text();
    check(it.is_right(0), name + (num_idle == 0 ? "the same bits, of what was here before the rest had come"
                                                : "the same bits, with room for few tiles at a time"));
    check(!gate.has_failed() && gate.num_waiting() == 0 && gate.stalled_s() > 0, name + "everybody went on");
}

// Two sequences have blocks coming, the second's come last.
static void test_two(Team& team, const Target& target, const Sizes& sizes, int64_t fresh) {
    Case it(target, team, sizes, {144 + fresh, 9, 288 + fresh}, {fresh, 2, fresh});
    const std::vector<int32_t> slots = it.slots(0, 0), later = it.slots(2, 1);
    for (const int32_t slot : slots) it.take_away(slot);
    for (const int32_t slot : later) it.take_away(slot);
    Gate gate(1e300, 0, slots), later_gate(1e300, 1, later);
    std::thread bringer([&] {
        for (const auto& [each, of] : {std::pair(&gate, &slots), std::pair(&later_gate, &later)}) {
            for (size_t i = 0; i < of->size(); ++i) each->advance();
            for (const int32_t slot : *of) {
                it.bring(slot);
                each->advance();
                std::this_thread::yield();
            }
        }
    });
    attend(target, team, sizes, it.batch, it.q, it.cache, it.out, it.scale, {&gate, &later_gate});
    bringer.join();
    check(it.is_right(0), "attention as blocks of two sequences come, " + it.text() + "the same bits");
}

// After some pieces no more come. The others in the step keep their answer, and the next step finds nothing amiss.
static void test_failure(Team& team, const Target& target, const Sizes& sizes, int64_t fresh, size_t num_come) {
    Case it(target, team, sizes, {1104 + fresh, 5, 700}, {fresh, 1, 3});
    const std::vector<int32_t> slots = it.slots(0, 2);
    for (const int32_t slot : slots) it.take_away(slot);
    Gate gate(1e300, 2, slots);
    std::thread failer([&] {
        for (size_t i = 0; i < slots.size() + num_come; ++i) {
            if (i >= slots.size()) it.bring(slots[i - slots.size()]);
            gate.advance();
        }
        while (gate.num_waiting() == 0) std::this_thread::yield();
        gate.fail();
    });
    Program program(target.name);
    program.add("attention", "tokens",
                {it.q.operand(), second_stream(sizes, it.cache), it.out.operand(), it.batch.positions.operand(),
                 it.batch.starts.operand(), it.batch.slots.operand()},
                {sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, sizes.slot_tokens}, {it.scale}, 1);
    const auto run = [&](const std::vector<Gate*>& gates) {
        program.run(team, it.batch.num_tokens(), it.batch.num_sequences(), 0, nullptr, gates);
    };
    run({&gate});
    failer.join();
    const std::string name = "attention as blocks fail, " + it.text() + std::to_string(num_come) + " have come: ";
    check(gate.has_failed() && it.is_right(fresh), name + "the others keep their bits");
    for (const int32_t slot : slots) it.bring(slot);
    run({});
    check(it.is_right(0), name + "the next step has the right bits");
}

void test_coming(const Setting& setting) {
    for (Team* team : {&setting.alone, &setting.pair}) {
        for (const Target& target : supported_targets()) {
            for (const DType dtype : {DType::float32, DType::bfloat16, DType::int8}) {
                if (setting.is_small && dtype == DType::float32) continue;
                // 2 tokens: a tile's spans are items; 70: its tiles are shared out among the threads.
                for (const int64_t fresh : {2, 70}) {
                    test_lockstep(*team, target, {2, 2, 16, 48, dtype}, fresh, 0);
                    test_two(*team, target, {2, 2, 16, 48, dtype}, fresh);
                }
                for (const size_t num_come : {0, 5, 20}) {
                    test_failure(*team, target, {2, 2, 16, 48, dtype}, 2, num_come);
                    test_failure(*team, target, {2, 2, 16, 48, dtype}, 70, num_come);
                }
            }
            if (setting.is_small) continue;
            test_lockstep(*team, target, {8, 2, 20, 16, DType::bfloat16}, 90, 0);
            test_lockstep(*team, target, {26, 2, 16, 64, DType::bfloat16}, 66, 0);  // more heads than a tile has rows
            test_lockstep(*team, target, {2, 2, 256, 48, DType::bfloat16}, 130, kMaxComing - 1);  // room for few tiles
        }
    }
}

}  // namespace tv::test
