// The KV cache: what a store puts where, and attention over it, with ragged batches, shuffled slots, and NaN in every
// place that was not written.
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
               (dtype == DType::bfloat16 ? ", bfloat16" : ", float32");
    }
    int64_t kv_width() const { return num_kv_heads * head_dim; }
    int64_t stream_elements() const { return 2 * kv_width() * slot_tokens; }
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
    // Where the key (is_value 0) or value (1) element of a position lies in its slot, as the contract says it.
    std::pair<int64_t, int64_t> place(const Sizes& sizes, int64_t sequence, int64_t position, int64_t head, int64_t d,
                                      bool is_value) const {
        const int64_t slot = static_cast<int64_t>(slots.at(sequence, position / sizes.slot_tokens));
        const int64_t token = position % sizes.slot_tokens;
        if (is_value) return {slot, (sizes.num_kv_heads + head) * sizes.slot_tokens * sizes.head_dim +
                                        token * sizes.head_dim + d};
        const int64_t block = head * sizes.slot_tokens / 16 + token / 16;
        const int64_t pair = sizes.dtype == DType::bfloat16 ? 2 : 1;
        return {slot, block * sizes.head_dim * 16 + (d / pair * 16 + token % 16) * pair + d % pair};
    }
};

// Slots hold two streams; the tests use the second, so that a lost offset is seen in the first.
static Matrix empty_cache(const Sizes& sizes, const Batch& batch) {
    Matrix cache(sizes.dtype, batch.num_slots(), 2 * sizes.stream_elements(), 0);
    cache.fill(std::nan(""));
    return cache;
}

static Operand second_stream(const Sizes& sizes, Matrix& cache) {
    Operand operand = cache.operand();
    operand.address += sizes.stream_elements() * (sizes.dtype == DType::bfloat16 ? 2 : 4);
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

static void store_history(const Setting& setting, const Target& target, const Sizes& sizes, Batch& queries,
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

// The cache as the contract says it: written element by element, up to `limit` positions of each sequence.
static Matrix written_cache(const Sizes& sizes, const Batch& batch, const History& history, int64_t limit) {
    Matrix cache = empty_cache(sizes, batch);
    for (int64_t s = 0; s < batch.num_sequences(); ++s) {
        for (int64_t p = 0; p < std::min(limit, batch.seen[s]); ++p) {
            for (int64_t i = 0; i < sizes.kv_width(); ++i) {
                const int64_t head = i / sizes.head_dim, d = i % sizes.head_dim;
                const auto key = batch.place(sizes, s, p, head, d, false);
                const auto value = batch.place(sizes, s, p, head, d, true);
                cache.set(key.first, sizes.stream_elements() + key.second, history.k.at(history.first_row[s] + p, i));
                cache.set(value.first, sizes.stream_elements() + value.second,
                          history.v.at(history.first_row[s] + p, i));
            }
        }
    }
    return cache;
}

static void attend(const Target& target, Team& team, const Sizes& sizes, Batch& batch, Matrix& q, Matrix& cache,
                   Matrix& out, double scale) {
    Program program(target.name);
    program.add("attention", "tokens",
                {q.operand(), second_stream(sizes, cache), out.operand(), batch.positions.operand(),
                 batch.starts.operand(), batch.slots.operand()},
                {sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, sizes.slot_tokens}, {scale});
    program.run(team, batch.num_tokens(), batch.num_sequences(), 0, nullptr);
}

static double stored(const Sizes& sizes, double value) {
    return sizes.dtype == DType::bfloat16 ? from_bfloat16(to_bfloat16(static_cast<float>(value))) : value;
}

// The largest difference from attention computed the plain way, in double.
static double attention_error(const Sizes& sizes, const Batch& batch, const History& history, const Matrix& q,
                              const Matrix& out, double scale) {
    double largest = 0.0;
    for (int64_t token = 0; token < batch.num_tokens(); ++token) {
        const int64_t s = batch.sequence_of(token);
        for (int64_t h = 0; h < sizes.num_heads; ++h) {
            const int64_t kv = h / (sizes.num_heads / sizes.num_kv_heads) * sizes.head_dim;
            std::vector<double> weights;
            double sum = 0.0;
            std::vector<double> wanted(sizes.head_dim, 0.0);
            for (int64_t p = 0; p <= batch.position_of(token); ++p) {
                double dot = 0.0;
                for (int64_t d = 0; d < sizes.head_dim; ++d) {
                    dot += q.at(token, h * sizes.head_dim + d) *
                           stored(sizes, history.k.at(history.first_row[s] + p, kv + d));
                }
                weights.push_back(std::exp(dot * scale));
                sum += weights.back();
            }
            for (size_t p = 0; p < weights.size(); ++p) {
                for (int64_t d = 0; d < sizes.head_dim; ++d) {
                    wanted[d] += weights[p] / sum * stored(sizes, history.v.at(history.first_row[s] + p, kv + d));
                }
            }
            for (int64_t d = 0; d < sizes.head_dim; ++d) {
                const double error = std::abs(out.at(token, h * sizes.head_dim + d) - wanted[d]);
                largest = error <= largest ? largest : error;  // a NaN becomes, and stays, the largest
            }
        }
    }
    return largest;
}

static void test_store_and_attention(const Setting& setting, const Sizes& sizes, const std::vector<int64_t>& seen,
                                     const std::vector<int64_t>& fresh) {
    Random random(sizes.head_dim * 1000 + sizes.num_heads * 10 + Batch::total(seen));
    Batch batch(random, seen, fresh, sizes.slot_tokens);
    History history(random, sizes, seen);
    const int64_t num_tokens = batch.num_tokens();
    const double scale = 1.0 / std::sqrt(static_cast<double>(sizes.head_dim));
    Matrix q(DType::float32, num_tokens, sizes.num_heads * sizes.head_dim), out(DType::float32, num_tokens, q.width());
    q.fill_random(random, 2.0);
    Matrix expected = written_cache(sizes, batch, history, INT64_MAX);
    std::string first_bits;
    for (const Target& target : supported_targets()) {
        const std::string name = sizes.text() + " on " + target.name + ": ";
        Matrix cache = empty_cache(sizes, batch);
        store_history(setting, target, sizes, batch, history, cache);
        check(cache.contents(0, cache.rows()) == expected.contents(0, cache.rows()),
              "kv_store " + name + "every element in its place, and nothing else written");
        attend(target, setting.alone, sizes, batch, q, cache, out.fill(std::nan("")), scale);
        const std::string bits = out.contents(0, num_tokens);
        check(attention_error(sizes, batch, history, q, out, scale) < 3e-6,
              "attention " + name + "agrees with its reference");
        if (first_bits.empty()) add_to_digest(first_bits = bits);
        check(bits == first_bits, "attention " + name + "same bits as on the best target");
        attend(target, setting.pair, sizes, batch, q, cache, out.fill(std::nan("")), scale);
        check(out.contents(0, num_tokens) == bits, "attention " + name + "same bits with two threads");
        check(out.guards_are_intact() && q.guards_are_intact(), "attention " + name + "writes nothing else");

        // A token by itself, in a cache that holds NaN wherever the token may not look.
        for (const int64_t token : {int64_t{0}, num_tokens / 2, num_tokens - 1}) {
            const int64_t s = batch.sequence_of(token);
            const int64_t position = batch.position_of(token);
            Matrix past = written_cache(sizes, batch, history, position + 1);
            Batch single(random, {position + 1}, {1}, sizes.slot_tokens);
            for (int64_t j = 0; j < single.slots.width(); ++j) single.slots.set(0, j, batch.slots.at(s, j));
            Matrix own(DType::float32, 1, q.width()), result(DType::float32, 1, q.width());
            for (int64_t i = 0; i < q.width(); ++i) own.set(0, i, q.at(token, i));
            attend(target, setting.pair, sizes, single, own, past, result, scale);
            check(result.contents(0, 1) == out.contents(token, 1),
                  "attention " + name + "a token alone, with NaN after it, has the bits it has among others");
        }
    }
}

static void test_fused_store(const Setting& setting, const Sizes& sizes, int64_t rotary) {
    Random random(rotary + sizes.head_dim);
    Batch batch(random, {3, 40, 18}, {3, 21, 1}, sizes.slot_tokens);
    const int64_t num_tokens = batch.num_tokens();
    Matrix q(DType::float32, num_tokens, sizes.num_heads * sizes.head_dim),
        k(DType::float32, num_tokens, sizes.kv_width()), v(DType::float32, num_tokens, sizes.kv_width()),
        angles(DType::float32, num_tokens, rotary),
        q_apart(DType::float32, num_tokens, q.width()), k_apart(DType::float32, num_tokens, k.width()),
        q_fused(DType::float32, num_tokens, q.width());
    q.fill_random(random);
    k.fill_random(random);
    v.fill_random(random);
    angles.fill_random(random);
    for (const Target& target : supported_targets()) {
        Matrix apart = empty_cache(sizes, batch), fused = empty_cache(sizes, batch);
        Program program(target.name);
        program.add("rope", "tokens", {q.operand(), angles.operand(), q_apart.operand()},
                    {sizes.num_heads, sizes.head_dim, rotary}, {});
        program.add("rope", "tokens", {k.operand(), angles.operand(), k_apart.operand()},
                    {sizes.num_kv_heads, sizes.head_dim, rotary}, {});
        program.add("kv_store", "tokens",
                    {k_apart.operand(), v.operand(), second_stream(sizes, apart), batch.positions.operand(),
                     batch.starts.operand(), batch.slots.operand()},
                    {sizes.num_kv_heads, sizes.head_dim, sizes.slot_tokens}, {});
        program.add("rope_kv_store", "tokens",
                    {q.operand(), k.operand(), v.operand(), angles.operand(), q_fused.operand(),
                     second_stream(sizes, fused), batch.positions.operand(), batch.starts.operand(),
                     batch.slots.operand()},
                    {sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, rotary, sizes.slot_tokens}, {});
        program.run(setting.pair, num_tokens, batch.num_sequences(), 0, nullptr);
        const std::string name = "rope_kv_store " + sizes.text() + " on " + target.name + ": ";
        check(q_fused.contents(0, num_tokens) == q_apart.contents(0, num_tokens), name + "same q as rope");
        check(fused.contents(0, fused.rows()) == apart.contents(0, apart.rows()), name + "same cache as apart");
        check(q_fused.guards_are_intact(), name + "writes nothing else");
    }
}

void test_attention(const Setting& setting) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        test_store_and_attention(setting, {4, 2, 16, 16, dtype}, {1, 16, 17, 45}, {1, 1, 5, 45});
        test_store_and_attention(setting, {3, 1, 20, 32, dtype}, {33, 64}, {1, 7});
        test_store_and_attention(setting, {2, 1, 16, 48, dtype}, {600, 3, 257}, {1, 2, 4});  // spans by several threads
        test_fused_store(setting, {6, 2, 50, 16, dtype}, 38);
        test_fused_store(setting, {4, 4, 64, 32, dtype}, 64);
        if (setting.is_small) continue;
        test_store_and_attention(setting, {9, 3, 64, 48, dtype}, {200, 5, 97}, {1, 5, 40});
        test_store_and_attention(setting, {16, 1, 128, 16, dtype}, {70}, {13});
        test_store_and_attention(setting, {5, 5, 50, 16, dtype}, {31, 32, 33}, {31, 2, 33});
    }
}

}  // namespace tv::test
