#include "copy.h"

#include <algorithm>
#include <cstring>

namespace tv {

// What a thread takes at a time: a huge page, so that each page is touched first by one thread.
constexpr int64_t kPieceBytes = 2 << 20;

void copy_ranges(Team& team, const std::vector<Range>& ranges) {
    std::vector<Range> pieces;
    for (const Range& range : ranges) {
        for (int64_t first = 0; first < range.num_bytes; first += kPieceBytes) {
            pieces.push_back({range.to + first, range.from + first, std::min(kPieceBytes, range.num_bytes - first)});
        }
    }
    const auto job = [](Team& team, int, void* context) {
        const auto& pieces = *static_cast<const std::vector<Range>*>(context);
        const int64_t count = static_cast<int64_t>(pieces.size());
        for (int64_t i = team.next_item(); i < count; i = team.next_item()) {
            std::memcpy(pieces[i].to, pieces[i].from, static_cast<size_t>(pieces[i].num_bytes));
        }
    };
    team.run(job, &pieces);
}

}  // namespace tv
