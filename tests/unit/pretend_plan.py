"""A plan and a tokenizer small enough to believe: the logits of a row are a function of what its slots really hold."""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from zlib import crc32

import numpy as np

from tests.unit.sampler_reference import Choice
from trivet._native import Gate, Sampler, Team
from trivet.base.dtypes import Array
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sampler import TokenLogprob, to_draw
from trivet.framework.graph.plan import Batch, Limits


def logits_after(tokens: Sequence[int], vocab_size: int) -> Array:
    """The logits after a sequence with these tokens, float32 [vocab_size], coarse enough to have ties."""
    stored = np.array([(token, position) for position, token in enumerate(tokens)], np.int64)
    draws = np.random.Generator(np.random.Philox(crc32(stored.tobytes()))).normal(size=vocab_size)
    return np.round(draws * 2, 1).astype(np.float32)


def chosen(
    row: Array, params: SamplingParams, tokens: Sequence[int], num_prompt: int = 1, seed: int = 5, choice: int = 0,
    stop_ids: frozenset[int] = frozenset({0}),
) -> Choice | None:  # fmt: skip
    """What the sampler takes from one row [vocab] after `tokens`."""
    before = array("i", tokens)
    draw = to_draw(params, num_prompt, seed, choice, stop_ids)
    history = [(0, before.buffer_info()[0])]
    logits = np.array(row, np.float32)[None]
    ids, logprobs, unfit = sampler_of(len(row)).choose(logits, [draw], [len(before)], history)
    if unfit:
        return None
    (token_id,) = ids.tolist()
    (logprob,) = (TokenLogprob(token_id, each, tuple(top)) for _, each, top in logprobs) if logprobs else (None,)
    return Choice(token_id, logprob)


@cache
def sampler_of(vocab_size: int) -> Sampler:
    return Sampler(Team([None]), vocab_size)


class PretendPlan:
    """Stores (token, position) in its pool through the slot table, and reads every position back from there.

    A slot given twice, a chunk at a wrong position or a step beyond the limits changes an answer or fails.
    """

    def __init__(
        self,
        num_slots: int = 16,
        slot_tokens: int = 4,
        vocab_size: int = 23,
        limits: Limits = Limits(max_tokens=32, max_sequences=8, max_rows=8, max_context=64),  # noqa: B008, frozen
    ) -> None:
        self.num_slots = num_slots
        self.slot_tokens = slot_tokens
        self.vocab_size = vocab_size
        self.limits = limits
        self.sampler = sampler_of(vocab_size)
        self.batches: list[Batch] = []
        self.fail_at: int | None = None  # the step that raises
        self.on_run: Callable[[], None] = lambda: None
        self.wrong: list[str] = []  # an engine takes a step that raises for a broken device, and goes on
        self._pool = np.full((num_slots, slot_tokens, 2), -1, np.int64)
        self._logits = np.zeros((limits.max_rows, vocab_size), np.float32)

    def beside(self, max_tokens: int) -> PretendPlan:
        """Another one with the same pool, to run while this one does."""
        limits = replace(self.limits, max_tokens=max_tokens)
        other = PretendPlan(self.num_slots, self.slot_tokens, self.vocab_size, limits)
        other._pool = self._pool
        return other

    def run(self, batch: Batch, arriving: Sequence[Gate] = ()) -> Array:
        self.on_run()
        try:
            return self._run(batch, arriving)
        except AssertionError as error:
            self.wrong.append(str(error))
            raise

    def _run(self, batch: Batch, arriving: Sequence[Gate]) -> Array:
        for gate in arriving:
            gate.wait(len(self.pieces) * gate.num_slots)
        self.batches.append(Batch(**{name: array.copy() for name, array in vars(batch).items()}))  # theirs will change
        if self.fail_at == len(self.batches):
            raise RuntimeError("the device is gone")
        self._check(batch)
        self._logits.fill(np.nan)  # the rows of the step before are overwritten
        bounds = list(zip(batch.starts[:-1], batch.starts[1:], strict=True))
        for slots, (start, end) in zip(batch.slots, bounds, strict=True):
            for token, position in zip(batch.tokens[start:end], batch.positions[start:end], strict=True):
                self._pool[slots[position // self.slot_tokens], position % self.slot_tokens] = token, position
        for row, token_index in enumerate(batch.rows):
            slots = batch.slots[np.searchsorted(batch.starts, token_index, side="right") - 1]
            is_in_doubt = any(gate.has_failed for gate in arriving)
            self._logits[row] = self._read(slots, int(batch.positions[token_index]), is_in_doubt)
        return self._logits[: len(batch.rows)]

    @property
    def slot_bytes(self) -> int:
        return self._pool[0].nbytes

    def read_slot(self, slot: int, into: Array) -> None:
        into[:] = self._pool[slot].reshape(-1).view(np.uint8)

    @property
    def pieces(self) -> list[slice]:
        """A token each."""
        size = self._pool[0, 0].nbytes
        return [slice(token * size, (token + 1) * size) for token in range(self.slot_tokens)]

    def write_slot(self, slot: int, piece: slice, source: Array) -> None:
        self._pool[slot].reshape(-1).view(np.uint8)[piece] = source[piece]

    def _read(self, slots: Array, last: int, is_in_doubt: bool) -> Array:
        stored = [self._pool[slots[p // self.slot_tokens], p % self.slot_tokens] for p in range(last + 1)]
        is_whole = list(range(last + 1)) == [int(position) for _, position in stored]
        assert is_whole or is_in_doubt, "a slot lost its positions"
        return logits_after([int(token) for token, _ in stored], self.vocab_size)

    def _check(self, batch: Batch) -> None:
        limits = self.limits
        arrays = (batch.tokens, batch.positions, batch.starts, batch.slots, batch.rows)
        assert all(array.dtype == np.int32 for array in arrays)
        assert 0 < len(batch.tokens) == len(batch.positions) == batch.starts[-1] <= limits.max_tokens
        assert 0 < len(batch.slots) == len(batch.starts) - 1 <= limits.max_sequences
        assert len(batch.rows) <= limits.max_rows
        assert np.all(np.diff(batch.starts) > 0), "a sequence without tokens"
        assert np.all(np.diff(batch.rows) > 0), "rows ascend"
        assert batch.positions.max() < limits.max_context


PIECES = (b"", "é".encode()[:1], "é".encode()[1:], b"\n", *(bytes([97 + i]) for i in range(12)),
          b"ab", b"bc", b"ca", b"abc", b" d", b" the", b"...")  # fmt: skip


class PretendTokenizer:
    """23 tokens: 0 ends the text, 1 and 2 are halves of a character."""

    eos_ids = frozenset({0})

    def stream(self) -> PretendStream:
        return PretendStream()

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        return [3] * add_special + [4 + (ord(character) - 97) % 12 for character in text]


class PretendStream:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(PIECES[token_id])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
