"""The sizes that steps are padded to, and that padding touches nothing of the batch's own."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trivet.framework.graph.buckets import bucket_of, bucket_sizes, most_padding, padded
from trivet.framework.graph.plan import Batch

NUM_SLOTS, SLOT_TOKENS, MAX_SLOTS = 6, 8, 3


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Sequences with slots of their own, some new tokens each, some rows wanted."""
    counts = draw(st.lists(st.integers(1, 9), max_size=4))
    past = [draw(st.integers(0, MAX_SLOTS * SLOT_TOKENS - count)) for count in counts]
    slots = draw(st.permutations(range(NUM_SLOTS)))[: len(counts)]
    num_tokens = sum(counts)
    positions = [np.arange(start, start + count) for start, count in zip(past, counts, strict=True)]
    rows = draw(st.lists(st.integers(0, num_tokens - 1), unique=True)) if counts else []
    return Batch(
        tokens=np.arange(7, 7 + num_tokens, dtype=np.int32),
        positions=np.concatenate([np.zeros(0), *positions]).astype(np.int32),
        starts=np.cumsum([0, *counts], dtype=np.int32),
        slots=np.array([[slot] * MAX_SLOTS for slot in slots], np.int32).reshape(len(counts), MAX_SLOTS),
        rows=np.array(sorted(rows), np.int32),
    )


def stored_rows(batch: Batch) -> list[int]:
    """Where each token is stored, in a cache seen as one row after the other."""
    rows = []
    for sequence, (start, end) in enumerate(pairwise(batch.starts)):
        for position in batch.positions[start:end]:
            slot = batch.slots[sequence, position // SLOT_TOKENS]
            rows.append(int(slot * SLOT_TOKENS + position % SLOT_TOKENS))
    return rows


def test_the_sizes_for_256() -> None:
    assert (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256) == bucket_sizes(256)


@given(st.integers(1, 100_000))
def test_sizes_rise_to_the_most_and_pad_at_most_a_fifth_of_a_step_above_64(most: int) -> None:
    sizes = bucket_sizes(most)

    assert most == sizes[-1]
    assert all(before < after for before, after in pairwise(sizes))
    assert all((after - before - 1) * 5 < after for before, after in pairwise(sizes) if before >= 64)


@given(st.integers(1, 4096), st.data())
def test_the_bucket_is_the_smallest_that_holds_the_step(most: int, data: st.DataObject) -> None:
    sizes, size = bucket_sizes(most), data.draw(st.integers(0, most))
    bucket = bucket_of(size, sizes)

    assert [each for each in sizes if each >= size][0] == bucket  # noqa: RUF015  as the sentence says
    assert bucket - max(size, 1) <= most_padding(sizes)


@given(batches(), st.integers(0, 20), st.integers(0, 3))
def test_padding_comes_last_and_writes_only_rows_of_its_own_in_the_spare_slots(
    batch: Batch, more_tokens: int, more_rows: int
) -> None:
    num_tokens, num_rows = len(batch.tokens) + more_tokens, len(batch.rows) + more_rows
    step = padded(batch, num_tokens, num_rows, MAX_SLOTS, NUM_SLOTS, SLOT_TOKENS)
    spare = NUM_SLOTS * SLOT_TOKENS

    assert (num_tokens, num_rows) == (len(step.tokens), len(step.rows))
    for name, array in vars(batch).items():
        np.testing.assert_array_equal(array, vars(step)[name][: len(array)])
    assert stored_rows(batch) + list(range(spare, spare + more_tokens)) == stored_rows(step)


@given(batches(), st.integers(1, 20))
def test_a_padded_token_is_a_sequence_of_its_own(batch: Batch, more: int) -> None:
    step = padded(batch, len(batch.tokens) + more, len(batch.rows), MAX_SLOTS, NUM_SLOTS, SLOT_TOKENS)

    assert [1] * more == np.diff(step.starts)[len(batch.slots) :].tolist()
    assert len(step.tokens) == step.starts[-1]
