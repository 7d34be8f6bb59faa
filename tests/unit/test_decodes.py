import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.waiting import waiting
from trivet.framework.engine.batch import to_batch
from trivet.framework.engine.chunk import Chunk
from trivet.framework.engine.decodes import Decodes

SLOT_TOKENS, MAX_ROWS = 4, 6


def decoding(order, num_tokens, first_slot):
    """A sequence that lacks its last token, in slots of its own."""
    sequence = waiting(order, num_tokens)
    sequence.tokens[-1] = 100 + order
    sequence.num_computed = num_tokens - 1
    sequence.slots.extend(range(first_slot, first_slot + -(-num_tokens // SLOT_TOKENS)))
    return sequence


events = st.one_of(
    st.tuples(st.just("join"), st.integers(1, 70)),
    st.tuples(st.just("leave"), st.integers(0, MAX_ROWS - 1)),
    st.tuples(st.just("step"), st.integers(0, 99)),
)


@given(st.lists(events, max_size=40))
def test_rows_say_what_their_sequences_say_whoever_joins_leaves_and_grows(drawn):
    decodes = Decodes(MAX_ROWS, SLOT_TOKENS)
    next_slot = 0
    for order, (event, number) in enumerate(drawn):
        if event == "join" and len(decodes) < MAX_ROWS:
            decodes.join(decoding(order, number, next_slot))
            next_slot += 100
        elif event == "leave" and number < len(decodes):
            leaving = decodes.sequences[number]
            decodes.leave(leaving)
            assert leaving.row is None
        elif event == "step":
            for sequence in decodes.without_room():
                assert sequence.num_computed == len(sequence.slots) * SLOT_TOKENS
                sequence.slots.append(next_slot)
                next_slot += 1
                decodes.grew(sequence)
            full = decodes.computed()
            assert full == [each for each in decodes.sequences if each.num_computed % SLOT_TOKENS == 0]
            tokens = np.arange(number, number + len(decodes), dtype=np.int32)
            decodes.chose(tokens)
            for sequence, token_id in zip(decodes.sequences, tokens.tolist(), strict=True):
                sequence.tokens.append(token_id)
        decodes.check()


@given(st.lists(st.integers(1, 70), max_size=3), st.lists(st.integers(2, 70), min_size=1, max_size=3), st.data())
def test_a_batch_is_the_rows_and_behind_them_the_prefills(lengths, prompts, data):
    decodes = Decodes(MAX_ROWS, SLOT_TOKENS)
    for order, length in enumerate(lengths):
        decodes.join(decoding(order, length, 100 * order))
    chunks = []
    for order, length in enumerate(prompts, len(lengths)):
        sequence = decoding(order, length, 100 * order)
        sequence.num_computed = data.draw(st.integers(0, length - 1))
        chunks.append(Chunk(sequence, data.draw(st.integers(1, length - sequence.num_computed))))
    batch = to_batch(decodes, chunks)
    every = [*(Chunk(sequence, 1) for sequence in decodes.sequences), *chunks]
    rows = []
    for i, (sequence, num_tokens) in enumerate(every):
        first, end = batch.starts[i], batch.starts[i + 1]
        last = sequence.num_computed + num_tokens
        assert list(sequence.tokens[sequence.num_computed : last]) == batch.tokens[first:end].tolist()
        assert list(range(sequence.num_computed, last)) == batch.positions[first:end].tolist()
        num_slots = len(sequence.slots)
        assert list(sequence.slots) == batch.slots[i, :num_slots].tolist()
        assert not batch.slots[i, num_slots:].any()
        rows += [end - 1] * (last == len(sequence.tokens))

    assert rows == batch.rows.tolist()
    assert len(every) == len(batch.slots)
    decodes.check()
