// Batches, caches and attention over them, for the tests of what reads or writes a cache: ragged, with shuffled slots, and
// NaN in every place that was not written.
#pragma once

#include <algorithm>

#include "check.h"
#include "program.h"
#include "suites.h"

namespace tv::test {

struct Sizes {
    int64_t num_heads, num_kv_heads, head_dim, slot_tokens;
    DType dtype;

    std::string text() const {
        return std::to_string(num_heads) + "/" + std::to_string(num_kv_heads) + " heads of " +
               std::to_string(head_dim) + ", slots of " + std::to_string(slot_tokens) +
               (dtype == DType::int8 ? ", int8" : dtype == DType::bfloat16 ? ", bfloat16" : ", float32");
    }
    int64_t kv_width() const { return num_kv_heads * head_dim; }
    // Of a head of a token, in elements, which are bytes in int8: there its scales are two for each 64.
    int64_t scale_elements() const { return dtype == DType::int8 ? 2 * ((head_dim + 63) / 64) : 0; }
    int64_t stream_elements() const { return 2 * num_kv_heads * (head_dim + scale_elements()) * slot_tokens; }
};

// Some sequences: `seen` positions of each are in the cache, the last `fresh` of them are queries.
struct Batch {
    std::vector<int64_t> seen, fresh;
    Matrix starts, positions, slots;

    Batch(Random& random, std::vector<int64_t> seen_positions, std::vector<int64_t> fresh_tokens, int64_t slot_tokens)
        : seen(std::move(seen_positions)), fresh(std::move(fresh_tokens)),
          starts(DType::int32, 1, static_cast<int64_t>(seen.size()) + 1, 0),
          positions(DType::int32, 1, std::max<int64_t>(1, total(fresh)), 0),
          slots(DType::int32, static_cast<int64_t>(seen.size()), max_slots(seen, slot_tokens)) {
        std::vector<int64_t> numbers(seen.size() * slots.width());
        for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i);
        for (size_t i = numbers.size() - 1; i > 0; --i) std::swap(numbers[i], numbers[random.below(i + 1)]);
        int64_t token = 0;
        for (size_t s = 0; s < seen.size(); ++s) {
            starts.set(0, s, static_cast<double>(token));
            for (int64_t j = 0; j < slots.width(); ++j) slots.set(s, j, numbers[s * slots.width() + j]);
            for (int64_t j = 0; j < fresh[s]; ++j) positions.set(0, token++, seen[s] - fresh[s] + j);
        }
        starts.set(0, seen.size(), static_cast<double>(token));
    }

    static int64_t total(const std::vector<int64_t>& counts) {
        int64_t sum = 0;
        for (const int64_t count : counts) sum += count;
        return sum;
    }
    static int64_t max_slots(const std::vector<int64_t>& seen, int64_t slot_tokens) {
        return (*std::max_element(seen.begin(), seen.end()) + slot_tokens - 1) / slot_tokens;
    }
    int64_t num_tokens() const { return total(fresh); }
    int64_t num_sequences() const { return static_cast<int64_t>(seen.size()); }
    int64_t num_slots() const { return slots.rows() * slots.width(); }
    int64_t sequence_of(int64_t token) const {
        int64_t s = 0;
        while (starts.at(0, s + 1) <= token) ++s;
        return s;
    }
    int64_t position_of(int64_t token) const { return static_cast<int64_t>(positions.at(0, token)); }
    // Where the block of a position lies in its slot, as the contract says it: first its scales, if it has some.
    std::pair<int64_t, int64_t> block(const Sizes& sizes, int64_t sequence, int64_t position, int64_t head,
                                      bool is_value) const {
        const int64_t slot = static_cast<int64_t>(slots.at(sequence, position / sizes.slot_tokens));
        const int64_t of_head = (is_value ? sizes.num_kv_heads : 0) + head;
        const int64_t number = of_head * sizes.slot_tokens / 16 + position % sizes.slot_tokens / 16;
        return {slot, number * 16 * (sizes.head_dim + sizes.scale_elements())};
    }
    // And where in its slot an element of the key or the value lies.
    std::pair<int64_t, int64_t> place(const Sizes& sizes, int64_t sequence, int64_t position, int64_t head, int64_t d,
                                      bool is_value) const {
        const auto [slot, first] = block(sizes, sequence, position, head, is_value);
        const int64_t token = position % 16;
        const int64_t elements = first + 16 * sizes.scale_elements();
        const int64_t pair = sizes.dtype == DType::float32 ? 1 : 2;
        if (is_value) return {slot, elements + (token / pair * sizes.head_dim + d) * pair + token % pair};
        return {slot, elements + (d / pair * 16 + token) * pair + d % pair};
    }
};

// Slots hold two streams; the tests use the second, so that a lost offset is seen in the first.
inline Matrix empty_cache(const Sizes& sizes, const Batch& batch) {
    Matrix cache(sizes.dtype, batch.num_slots(), 2 * sizes.stream_elements(), 0);
    return cache.fill(sizes.dtype == DType::int8 ? -1 : std::nan(""));  // scales of -1 -1 are NaN
}

inline Operand second_stream(const Sizes& sizes, Matrix& cache) {
    Operand operand = cache.operand();
    const int64_t bytes = sizes.dtype == DType::int8 ? 1 : sizes.dtype == DType::bfloat16 ? 2 : 4;
    operand.address += sizes.stream_elements() * bytes;
    return operand;
}

// Keys and values of every position of every sequence: row (sequence, position) of k and v.
struct History {
    Matrix k, v;
    std::vector<int64_t> first_row;

    History(Random& random, const Sizes& sizes, const std::vector<int64_t>& seen)
        : k(DType::float32, Batch::total(seen), sizes.kv_width()), v(DType::float32, k.rows(), sizes.kv_width()) {
        k.fill_random(random, 2.0);
        v.fill_random(random);
        int64_t row = 0;
        for (const int64_t count : seen) {
            first_row.push_back(row);
            row += count;
        }
    }
};

inline void store_history(const Setting& setting, const Target& target, const Sizes& sizes, Batch& queries,
                          History& history, Matrix& cache) {
    // The whole history as one batch, in the slots the queries will find it in.
    Random unused(0);
    Batch all(unused, queries.seen, queries.seen, sizes.slot_tokens);
    Program program(target.name);
    program.add("kv_store", "tokens",
                {history.k.operand(), history.v.operand(), second_stream(sizes, cache), all.positions.operand(),
                 all.starts.operand(), queries.slots.operand()},
                {sizes.num_kv_heads, sizes.head_dim, sizes.slot_tokens}, {});
    program.run(setting.pair, all.num_tokens(), all.num_sequences(), 0, nullptr);
}

// What a cache keeps of a head of a row: its elements, and in int8 a scale for each 64 of them.
struct Kept {
    std::vector<double> elements, scales;

    Kept(const Sizes& sizes, const Matrix& rows, int64_t row, int64_t head) {
        for (int64_t d = 0; d < sizes.head_dim; ++d) {
            const double value = rows.at(row, head * sizes.head_dim + d);
            if (sizes.dtype == DType::int8 && d % 64 == 0) {
                float largest = 0.0f;
                for (int64_t i = d; i < std::min(d + 64, sizes.head_dim); ++i) {
                    largest = std::max(largest, static_cast<float>(std::abs(rows.at(row, head * sizes.head_dim + i))));
                }
                scales.push_back(from_bfloat16(to_bfloat16(largest / 127.0f)));
            }
            if (sizes.dtype == DType::int8) {
                elements.push_back(std::nearbyint(static_cast<float>(value) / static_cast<float>(scales.back())));
            } else if (sizes.dtype == DType::bfloat16) {
                elements.push_back(from_bfloat16(to_bfloat16(static_cast<float>(value))));
            } else {
                elements.push_back(value);
            }
        }
    }
    double at(int64_t d) const { return elements[d] * (scales.empty() ? 1.0 : scales[d / 64]); }
};

// The cache as the contract says it: written element by element, up to `limit` positions of each sequence.
inline Matrix written_cache(const Sizes& sizes, const Batch& batch, const History& history, int64_t limit) {
    Matrix cache = empty_cache(sizes, batch);
    for (int64_t s = 0; s < batch.num_sequences(); ++s) {
        for (int64_t p = 0; p < std::min(limit, batch.seen[s]); ++p) {
            for (int64_t i = 0; i < 2 * sizes.num_kv_heads; ++i) {
                const bool is_value = i >= sizes.num_kv_heads;
                const int64_t head = i % sizes.num_kv_heads;
                const Kept kept(sizes, is_value ? history.v : history.k, history.first_row[s] + p, head);
                for (int64_t d = 0; d < sizes.head_dim; ++d) {
                    const auto [slot, place] = batch.place(sizes, s, p, head, d, is_value);
                    cache.set(slot, sizes.stream_elements() + place, kept.elements[d]);
                }
                const auto [slot, block] = batch.block(sizes, s, p, head, is_value);
                for (size_t g = 0; g < kept.scales.size(); ++g) {
                    const uint16_t scale = to_bfloat16(static_cast<float>(kept.scales[g]));
                    const int64_t place = sizes.stream_elements() + block + 2 * (static_cast<int64_t>(g) * 16 + p % 16);
                    cache.set(slot, place, static_cast<int8_t>(scale & 0xff));
                    cache.set(slot, place + 1, static_cast<int8_t>(scale >> 8));
                }
            }
        }
    }
    return cache;
}

inline void attend(const Target& target, Team& team, const Sizes& sizes, Batch& batch, Matrix& q, Matrix& cache,
                   Matrix& out, double scale, const std::vector<Gate*>& gates = {}) {
    Program program(target.name);
    program.add("attention", "tokens",
                {q.operand(), second_stream(sizes, cache), out.operand(), batch.positions.operand(),
                 batch.starts.operand(), batch.slots.operand()},
                {sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, sizes.slot_tokens}, {scale}, 1);
    program.run(team, batch.num_tokens(), batch.num_sequences(), 0, nullptr, gates);
}

}  // namespace tv::test
