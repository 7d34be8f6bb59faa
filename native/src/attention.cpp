// Attention over the KV cache: how a step's rows become items of work. Who computes which span, in how many goes, and in
// whose company, cannot change a bit: see attention_rows.h.
#include "attention_rows.h"

namespace tv::TV_TARGET {

// `run` with the number of rows as a constant.
template <int ROWS, class Run>
static void with_rows(int64_t rows, const Run& run) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return with_rows<ROWS - 1>(rows, run);
    }
    run(Number<ROWS>());
}

// A tile of rows is the heads of a kv head, of as many tokens as fit; more heads than that are several.
struct Tiling {
    int64_t group;         // query heads per kv head
    int64_t tokens;        // of a tile
    int64_t parts;         // tiles of a token and kv head
    int64_t state_floats;  // what attend_further keeps of a tile

    explicit Tiling(const Call& call)
        : group(call.integers[0] / call.integers[1]), tokens(larger(kTileRows / group, 1)),
          parts(ceil_div(tokens * group, kTileRows)),
          state_floats(2 * kTileRows * Partial::floats(call.integers[2])) {}
};

// How a step's work is cut into items. A tile of rows that sees more than a span may be several items, so that a
// sequence or two of great length keep every thread busy; the one that ends last merges what all of them made.
// Where that is not so, the tiles of a sequence to which blocks are still coming are shares, behind all other items.
struct Division {
    static constexpr int64_t kManyItems = kScratchCounters;
    static constexpr int64_t kMaxShares = 256;  // of a step: each has room for a tile in the scratch
    static_assert(kMaxShares >= kMaxComing && kMaxShares * 2 * kTileRows * kMaxPartialFloats <= kScratchFloats);

    int64_t num_wholes;  // tiles at most: one for each token and kv head
    int64_t num_spans = 1;  // that the longest row sees
    int64_t parts = 1;   // items of a tile
    int64_t num_shares = 0;  // of each sequence to which blocks are coming

    Division(const Call& call, const Step& step) : num_wholes(step.num_rows * call.integers[1]) {
        divide_tiles(call, step);
        if (parts == 1 && step.num_coming > 0) num_shares = smaller(step.num_threads, kMaxShares / step.num_coming);
    }

private:
    void divide_tiles(const Call& call, const Step& step) {
        if (2 * num_wholes > kManyItems) return;
        const int32_t* positions = vector_of<const int32_t>(call.operands[3]);
        int32_t last = 0;
        for (int64_t i = 0; i < step.num_rows; ++i) last = positions[i] > last ? positions[i] : last;
        num_spans = ceil_div(last + 1, kSpanTokens);
        const int64_t heads = step.num_rows * call.integers[0];
        const bool fits = heads * num_spans * Partial::floats(call.integers[2]) <= kScratchFloats;
        if (fits) parts = smaller(kManyItems / num_wholes, num_spans);
    }
};

// What is coming to the slots of a sequence; null where all is in them.
static const Coming* coming_to(const Call& call, const Step& step, int64_t sequence) {
    for (const Coming* coming = step.coming; coming < step.coming + step.num_coming; ++coming) {
        const int64_t last = vector_of<const int32_t>(call.operands[4])[sequence + 1] - 1;
        const int64_t position = vector_of<const int32_t>(call.operands[3])[last];
        const int32_t* slots = row_of<const int32_t>(call.operands[5], sequence);
        // A row of slots has numbers of no meaning behind those that the sequence has.
        if (coming->first <= position / call.integers[3] && slots[coming->first] == coming->slot) return coming;
    }
    return nullptr;
}

template <class C>
static Attention<C> attention_of(const Call& call, const Step& step, int64_t sequence, int64_t kv_head) {
    const Operand* o = call.operands;
    const int64_t num_kv_heads = call.integers[1];
    return {{o[1].address, o[1].stride, num_kv_heads, call.integers[2], call.integers[3]},
            o,
            o + 2,
            vector_of<const int32_t>(o[3]),
            row_of<const int32_t>(o[5], sequence),
            kv_head,
            call.integers[0] / num_kv_heads,
            call.number,
            coming_to(call, step, sequence),
            step.stream};
}

// How far from `position`, the first of a tile, blocks have come: a tile at least, to the end of the span at most.
static int64_t reach(const Coming& coming, int64_t stream, int64_t slot_tokens, int64_t position) {
    const int64_t span_end = position - position % kSpanTokens + kSpanTokens;
    const int64_t num_slots = num_here(coming, stream);
    if (num_slots == coming.num_slots) return span_end;
    const int64_t here = (coming.first + num_slots) * slot_tokens;
    return between(position + kTileTokens, here - here % kTileTokens, span_end);
}

// A thread's share of the tiles of a sequence to which blocks are coming. It goes through the positions with all of
// them together, as far as blocks have come, and waits for the next only then: tile by tile to the end, the first would
// wait for the last block. More tiles than the scratch has room for are taken after those, when all has come.
template <class C>
static void attend_share(const Call& call, const Step& step, const Division& division, int64_t item) {
    const Tiling tiling(call);
    const int64_t num_shares = division.num_shares, share = item % num_shares;
    const int64_t num_states = kScratchFloats / (step.num_coming * num_shares * tiling.state_floats);
    float* states = step.scratch->floats + item * num_states * tiling.state_floats;
    const Coming& coming = step.coming[item / num_shares];
    int64_t sequence = 0;
    while (coming_to(call, step, sequence) != &coming) {
        if (++sequence == step.num_sequences) return;
    }
    const int32_t* starts = vector_of<const int32_t>(call.operands[4]);
    const int64_t start = starts[sequence], end = starts[sequence + 1];
    const int64_t length = vector_of<const int32_t>(call.operands[3])[end - 1] + 1;
    const int64_t num_kv_heads = call.integers[1];
    const int64_t num_tiles = ceil_div(end - start, tiling.tokens) * num_kv_heads * tiling.parts;
    const int64_t stride = num_shares * num_states;
    for (int64_t first_tile = share; first_tile < num_tiles; first_tile += stride) {
        for (int64_t position = 0; position < length;) {
            const int64_t until = reach(coming, step.stream, call.integers[3], position);
            if (!attention_of<C>(call, step, sequence, 0).is_here(smaller(until, length))) return;
            float* state = states;
            for (int64_t i = first_tile; i < smaller(first_tile + stride, num_tiles); i += num_shares) {
                const int64_t kv_head = i / tiling.parts % num_kv_heads;
                const int64_t token = start + i / tiling.parts / num_kv_heads * tiling.tokens;
                const int64_t first = i % tiling.parts * kTileRows;
                const int64_t num_rows = smaller(tiling.tokens, end - token) * tiling.group;
                const Attention<C> attention = attention_of<C>(call, step, sequence, kv_head);
                with_rows<kTileRows>(smaller(kTileRows, num_rows - first), [&](auto rows) {
                    attend_further<decltype(rows)::value>(attention, token, first, position, until, state);
                });
                state += tiling.state_floats;
            }
            position = until;
        }
    }
}

// Which tokens and kv head an item is about: its first token, or what is in a tile that begins at an earlier one.
struct Whole {
    int64_t token, sequence, kv_head;
    bool is_first;

    // From the last token, which sees the most, to the first: the longest items should not be begun last.
    Whole(const Call& call, const Step& step, const Tiling& tiling, int64_t whole)
        : token(step.num_rows - 1 - whole / call.integers[1]),
          sequence(sequence_of(starts(call), step.num_sequences, token)), kv_head(whole % call.integers[1]),
          is_first((token - starts(call)[sequence]) % tiling.tokens == 0) {}

    static const int32_t* starts(const Call& call) { return vector_of<const int32_t>(call.operands[4]); }
};

// Items as Team::Items share them out: each thread's are of the rows that it has in the operators around, and go from the
// last of them to the first. Where blocks are coming there is one share.
static int64_t whole_of(const Step& step, int64_t num_wholes, int64_t item) {
    const int64_t shares = step.num_coming > 0 ? 1 : step.num_threads;
    const int64_t share = ((item + 1) * shares - 1) / num_wholes;
    const int64_t begin = num_wholes * share / shares, end = num_wholes * (share + 1) / shares;
    return num_wholes - begin - end + item;
}

// The first tile of what a thread likely takes after an item, if all take about as long. It is fetched meanwhile: many
// sequences have few tiles each, and one that comes from memory only when it is wanted takes as long again (32 sequences
// of 144 positions, two threads of a Zen 4: 5.6 → 4.1 ms of a step).
template <class C>
static bool find_following(const Call& call, const Step& step, const Division& division, const Tiling& tiling,
                           int64_t item, Tile<C>& following) {
    const int64_t next = item + (step.num_coming > 0 ? step.num_threads : 1);  // as Team::Items go
    if (next >= division.num_wholes) return false;
    const Whole whole(call, step, tiling, whole_of(step, division.num_wholes, next));
    if (!whole.is_first) return false;
    const Attention<C> attention = attention_of<C>(call, step, whole.sequence, whole.kv_head);
    following = attention.tile_at(0, attention.positions[whole.token]);
    return true;
}

// The tiles of a token and kv head, or some spans of them.
template <class C>
static void attend_tiles(const Call& call, const Step& step, const Division& division, int64_t item) {
    const Tiling tiling(call);
    const int64_t num_kv_heads = call.integers[1];
    // The early spans of all tiles before the late ones of any, since blocks come in that order.
    const int64_t whole =
        division.parts == 1 ? whole_of(step, division.num_wholes, item) : item % division.num_wholes;
    const auto [token, sequence, kv_head, is_first] = Whole(call, step, tiling, whole);
    if (!is_first) return;
    const int64_t num_rows = smaller(tiling.tokens, Whole::starts(call)[sequence + 1] - token) * tiling.group;
    Attention<C> attention = attention_of<C>(call, step, sequence, kv_head);
    if (division.parts == 1) {
        if (attention.coming != nullptr) return;  // in a share
        Tile<C> following;
        if (find_following(call, step, division, tiling, item, following)) attention.following = &following;
        for (int64_t first = 0; first < num_rows; first += kTileRows) {
            with_rows<kTileRows>(smaller(kTileRows, num_rows - first), [&](auto rows) {
                attend_rows<decltype(rows)::value>(attention, token, first);
            });
        }
        return;
    }
    const int64_t num_spans = ceil_div(attention.length_of(token, num_rows - 1), kSpanTokens);
    const int64_t part = item / division.num_wholes;
    const int64_t row_floats = Partial::floats(attention.stream.head_dim);
    // A tile takes the place of all its rows: that of its tokens, by kv head.
    const int64_t first_row = token * num_kv_heads * tiling.group + attention.kv_head * num_rows;
    float* scratch = step.scratch->floats + first_row * division.num_spans * row_floats;
    for (int64_t first = 0; first < num_rows; first += kTileRows) {
        with_rows<kTileRows>(smaller(kTileRows, num_rows - first), [&](auto rows) {
            attend_spans<decltype(rows)::value>(attention, token, first, part * num_spans / division.parts,
                                                (part + 1) * num_spans / division.parts, scratch,
                                                num_rows * row_floats);
        });
    }
    uint32_t* num_done = step.scratch->counters + whole;
    if (__atomic_add_fetch(num_done, 1, __ATOMIC_ACQ_REL) < division.parts) return;
    *num_done = 0;
    merge_spans(attention, token, num_rows, scratch, num_rows * row_floats);
}

// q, cache, out, positions, starts, slots · num_heads, num_kv_heads, head_dim, slot_tokens · scale
template <class C>
static void attend(const Call& call, const Step& step, int64_t item) {
    const NoDenormals no_denormals(ChainOf<C>::kFlushes);
    const Division division(call, step);
    const int64_t num_items = division.num_wholes * division.parts;
    if (item < num_items) return attend_tiles<C>(call, step, division, item);
    attend_share<C>(call, step, division, item - num_items);
}

static int64_t count_attention_items(const Call& call, const Step& step) {
    const Division division(call, step);
    return division.num_wholes * division.parts + step.num_coming * division.num_shares;
}

static void run_attention_item(const Call& call, const Step& step, int64_t item) {
    switch (call.operands[1].dtype) {
        case DType::int8: return attend<int8_t>(call, step, item);
        case DType::bfloat16: return attend<BFloat16>(call, step, item);
        default: return attend<float>(call, step, item);
    }
}

const Kernel attention = {count_attention_items, run_attention_item};

}  // namespace tv::TV_TARGET
