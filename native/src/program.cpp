#include "program.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "signatures.h"

namespace tv {

DType dtype_named(const std::string& name) {
    if (name == "float32") return DType::float32;
    if (name == "bfloat16") return DType::bfloat16;
    if (name == "int32") return DType::int32;
    if (name == "int8") return DType::int8;
    throw std::invalid_argument("dtype: '" + name + "' is not one a kernel takes (float32, bfloat16, int32, int8)");
}

Program::Program(const std::string& target)
    : target_(target_named(target)),
      scratch_(static_cast<Scratch*>(std::aligned_alloc(alignof(Scratch), sizeof(Scratch))), std::free) {
    if (scratch_ == nullptr) throw std::bad_alloc();
    std::memset(scratch_->counters, 0, sizeof scratch_->counters);
}

void Program::add(const std::string& kernel, const std::string& extent, const std::vector<Operand>& operands,
                  const std::vector<int64_t>& integers, const std::vector<double>& numbers,
                  const std::optional<int64_t>& stream) {
    const Signature& signature = signature_named(kernel);
    const Call call = checked_call(signature, extent, operands, integers, numbers);
    const Extent loops_over = extent == "rows" ? Extent::rows : Extent::tokens;
    if (stream && !signature.waits) throw std::invalid_argument(kernel + ": it waits for no stream, and one is given");
    if (stream.value_or(0) < 0) throw std::invalid_argument(kernel + ": stream is negative");
    instructions_.push_back({target_.kernels->*signature.entry, loops_over, call, stream});
}

bool Program::waits() const {
    return std::any_of(instructions_.begin(), instructions_.end(), [](const Instruction& each) { return each.stream; });
}

void Program::run(Team& team, int64_t num_tokens, int64_t num_sequences, int64_t num_rows, double* seconds,
                  const std::vector<Gate*>& gates) const {
    using Clock = std::chrono::steady_clock;
    struct Run {
        const std::vector<Instruction>& instructions;
        Step tokens, rows;
        double* seconds;
        const std::vector<Coming>& coming;
        Clock::time_point start;
    };
    std::vector<Coming> coming;
    for (Gate* gate : gates) coming.push_back(gate->coming());
    const int64_t num_threads = team.num_threads();
    // The first instruction's time begins here: waking the team is part of it.
    Scratch* scratch = scratch_.get();
    Run run = {instructions_, {num_tokens, num_sequences, scratch, num_threads},
               {num_rows, num_sequences, scratch, num_threads}, seconds, coming, Clock::now()};
    const auto job = [](Team& team, int worker, void* context) {
        const Run& run = *static_cast<const Run*>(context);
        const bool is_timing = worker == 0 && run.seconds != nullptr;
        Clock::time_point before = run.start;
        for (size_t i = 0; i < run.instructions.size(); ++i) {
            const Instruction& instruction = run.instructions[i];
            Step step = instruction.extent == Extent::tokens ? run.tokens : run.rows;
            if (instruction.stream) {
                step.coming = run.coming.data();
                step.num_coming = static_cast<int64_t>(run.coming.size());
                step.stream = *instruction.stream;
            }
            const int64_t num_items = instruction.kernel->count_items(instruction.call, step);
            // What waits for blocks that are coming is behind what need not.
            Team::Items items(team, worker, num_items, step.num_coming > 0);
            for (int64_t item = items.next(); item < num_items; item = items.next()) {
                instruction.kernel->run_item(instruction.call, step, item);
            }
            team.barrier(worker);
            if (!is_timing) continue;
            const Clock::time_point after = Clock::now();
            run.seconds[i] += std::chrono::duration<double>(after - before).count();
            before = after;
        }
    };
    team.run(job, &run);
}

}  // namespace tv
