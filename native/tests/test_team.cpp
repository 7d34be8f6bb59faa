// Teams: every item once, whatever the number of threads and cpus.
#include <stdexcept>

#include "check.h"
#include "suites.h"

namespace tv::test {

static std::vector<std::optional<int>> unpinned(int size) { return std::vector<std::optional<int>>(size); }

struct Tally {
    int num_phases;
    int64_t num_items;
    std::vector<std::atomic<int>> times;
    std::atomic<bool> is_in_order{true};

    Tally(int phases, int64_t items) : num_phases(phases), num_items(items), times(items) {}
};

// Each phase adds one to every item; at its start every item must have been done in all phases before.
static void count_items(Team& team, int worker, void* context) {
    Tally& tally = *static_cast<Tally*>(context);
    for (int phase = 0; phase < tally.num_phases; ++phase) {
        Team::Items items(team, worker, tally.num_items, phase % 5 == 4);
        for (int64_t item = items.next(); item < tally.num_items; item = items.next()) {
            if (tally.times[(item + 1) % tally.num_items] < phase) tally.is_in_order = false;
            ++tally.times[item];
        }
        team.barrier(worker);
    }
}

static void check_team(Team& team, int num_phases, int64_t num_items, const std::string& name) {
    Tally tally(num_phases, num_items);
    team.run(count_items, &tally);
    bool is_complete = true;
    for (const std::atomic<int>& times : tally.times) is_complete &= times == num_phases;
    check(is_complete, name + ": every item once in every phase");
    check(tally.is_in_order, name + ": no phase begins before the last has ended");
}

void test_team(const Setting& setting) {
    const int num_phases = setting.is_small ? 200 : 2000;
    for (int size = 1; size <= 4; ++size) {
        Team team(unpinned(size));
        const std::string name = "team of " + std::to_string(size);
        check_team(team, num_phases, 3, name);
        for (int i = 0; i < 50; ++i) check_team(team, 2, 17, name + " again");
    }
    Team crowded({0, 0, 0});
    check_team(crowded, num_phases, 5, "team of three on one cpu");
    { const Team never_used(unpinned(3)); }
    bool refuses = false;
    try {
        Team impossible({100000});
    } catch (const std::invalid_argument&) {
        refuses = true;
    }
    check(refuses, "a cpu that is not there is refused");

    // Two callers of one team take turns.
    Team shared(unpinned(2));
    Tally first(50, 7), second(50, 11);
    std::thread other([&] {
        for (int i = 0; i < 20; ++i) shared.run(count_items, &first);
    });
    for (int i = 0; i < 20; ++i) shared.run(count_items, &second);
    other.join();
    check(first.times[0] == 1000 && second.times[10] == 1000, "two callers of one team both get all their work done");
}

}  // namespace tv::test
