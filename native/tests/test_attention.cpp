// The KV cache: what a store puts where, and attention over it.
#include "kv_cases.h"

namespace tv::test {

// A query as it is multiplied: scaled, and beside a cache in bfloat16 rounded to it.
static double taken(const Sizes& sizes, double q, double scale) {
    const float scaled = static_cast<float>(q) * static_cast<float>(scale);
    return sizes.dtype == DType::bfloat16 ? from_bfloat16(to_bfloat16(scaled)) : scaled;
}

// The largest difference from attention computed the plain way, in double.
static double attention_error(const Sizes& sizes, const Batch& batch, const History& history, const Matrix& q,
                              const Matrix& out, double scale) {
    double largest = 0.0;
    for (int64_t token = 0; token < batch.num_tokens(); ++token) {
        const int64_t s = batch.sequence_of(token);
        for (int64_t h = 0; h < sizes.num_heads; ++h) {
            const int64_t kv_head = h / (sizes.num_heads / sizes.num_kv_heads);
            std::vector<double> weights;
            double sum = 0.0;
            std::vector<double> wanted(sizes.head_dim, 0.0);
            for (int64_t p = 0; p <= batch.position_of(token); ++p) {
                const Kept key(sizes, history.k, history.first_row[s] + p, kv_head);
                double dot = 0.0;
                for (int64_t d = 0; d < sizes.head_dim; ++d) {
                    dot += taken(sizes, q.at(token, h * sizes.head_dim + d), scale) * key.at(d);
                }
                weights.push_back(std::exp(dot));
                sum += weights.back();
            }
            for (size_t p = 0; p < weights.size(); ++p) {
                const Kept value(sizes, history.v, history.first_row[s] + static_cast<int64_t>(p), kv_head);
                for (int64_t d = 0; d < sizes.head_dim; ++d) wanted[d] += weights[p] / sum * value.at(d);
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
        // Queries and weights in 16 bits, beside keys and values in 8; weights in bfloat16, beside values in it.
        const double allowed = sizes.dtype == DType::int8 ? 2e-4 : sizes.dtype == DType::bfloat16 ? 2e-3 : 3e-6;
        check(attention_error(sizes, batch, history, q, out, scale) < allowed,
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
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::int8}) {
        test_store_and_attention(setting, {4, 2, 16, 16, dtype}, {1, 16, 17, 45}, {1, 1, 5, 45});
        test_store_and_attention(setting, {3, 1, 20, 32, dtype}, {33, 64}, {1, 7});
        test_store_and_attention(setting, {2, 1, 16, 48, dtype}, {600, 3, 257}, {1, 2, 4});  // spans by several threads
        test_fused_store(setting, {6, 2, 50, 16, dtype}, 38);
        test_fused_store(setting, {4, 4, 64, 32, dtype}, 64);
        test_store_and_attention(setting, {2, 1, 80, 16, dtype}, {70, 3}, {2, 3});  // in int8 two scales for a head
        if (setting.is_small) continue;
        test_store_and_attention(setting, {9, 3, 64, 48, dtype}, {200, 5, 97}, {1, 5, 40});
        test_store_and_attention(setting, {16, 1, 128, 16, dtype}, {70}, {13});
        test_store_and_attention(setting, {5, 5, 50, 16, dtype}, {31, 32, 33}, {31, 2, 33});
    }
}

}  // namespace tv::test
