"""Which slots of the KV pool are free, and how a slot is cut into streams. A slot is one holder's or free, never both.

Numbers and bytes: it knows no sequence and touches no memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass

from trivet.base.dtypes import DType, item_bytes
from trivet.base.units import MIB, align_up
from trivet.operators.kv_layout import BLOCK_TOKENS

STREAM_ALIGNMENT = 64  # a cache line, and the widest vector load
SLOT_ALIGNMENT = 4096  # a page, so that one slot can be one direct I/O
DEFAULT_SLOT_BYTES = 2 * MIB


@dataclass(frozen=True)
class SlotLayout:
    """How every slot is cut: `slot_tokens` tokens of each stream, stream after stream."""

    slot_tokens: int
    offsets: Mapping[str, int]  # stream → bytes from the start of its slot
    stride_bytes: int  # from one slot to the next

    def pool_bytes(self, num_slots: int) -> int:
        return num_slots * self.stride_bytes

    def slots_for(self, num_tokens: int) -> int:
        """How many slots hold `num_tokens` tokens of one sequence."""
        return -(-num_tokens // self.slot_tokens)


def kv_token_bytes(num_heads: int, head_dim: int, dtype: DType) -> int:
    """What one token costs in a stream of kind "kv": a key and a value per KV head."""
    return 2 * num_heads * head_dim * item_bytes(dtype)


def lay_out(
    token_bytes: Mapping[str, int], slot_bytes: int = DEFAULT_SLOT_BYTES, slot_tokens: int | None = None
) -> SlotLayout:
    """Slots of at most `slot_bytes` for streams of so many bytes per token; or of `slot_tokens` tokens if given.

    A slot holds the most whole blocks that fit, 16 tokens each, as attention walks them; and never less than one:
    where a block alone is larger than `slot_bytes`, the slot is as large as that block (read `stride_bytes`).
    """
    assert token_bytes, "a pool needs a stream"
    if slot_tokens is not None:
        return _cut(token_bytes, slot_tokens)
    tokens = BLOCK_TOKENS
    while _cut(token_bytes, tokens + BLOCK_TOKENS).stride_bytes <= slot_bytes:
        tokens += BLOCK_TOKENS
    return _cut(token_bytes, tokens)


def _cut(token_bytes: Mapping[str, int], slot_tokens: int) -> SlotLayout:
    offsets: dict[str, int] = {}
    end = 0
    for name, size in token_bytes.items():
        assert size > 0, f"stream {name}: {size} bytes per token"
        offsets[name] = end
        end += align_up(size * slot_tokens, STREAM_ALIGNMENT)
    return SlotLayout(slot_tokens, offsets, align_up(end, SLOT_ALIGNMENT))


class SlotPool:
    """Hands out slots by number. A holder keeps its own list, in the order of the positions it stores there."""

    def __init__(self, num_slots: int, slot_tokens: int) -> None:
        assert num_slots > 0, f"a pool of {num_slots} slots"
        assert slot_tokens > 0, f"slots of {slot_tokens} tokens"
        self.num_slots = num_slots
        self.slot_tokens = slot_tokens
        self._free = list(range(num_slots - 1, -1, -1))  # a stack: the warmest slot goes out again first

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """The share of slots that are held, 0 to 1."""
        return 1 - len(self._free) / self.num_slots

    def missing(self, held: Sequence[int], num_tokens: int) -> int:
        """How many slots more than `held` it takes to store `num_tokens` tokens."""
        return max(0, -(-num_tokens // self.slot_tokens) - len(held))

    def fits(self, held: Sequence[int], num_tokens: int) -> bool:
        return self.missing(held, num_tokens) <= len(self._free)

    def grow(self, held: MutableSequence[int], num_tokens: int) -> None:
        """Append to `held` the slots it misses for `num_tokens` tokens. The caller has asked `fits`."""
        assert self.fits(held, num_tokens), f"{self.missing(held, num_tokens)} slots wanted, {self.num_free} free"
        for _ in range(self.missing(held, num_tokens)):
            held.append(self._free.pop())

    def release(self, held: MutableSequence[int]) -> None:
        """Take all of `held` back and empty it."""
        self._free.extend(reversed(held))
        del held[:]

    def check(self, held: Iterable[Sequence[int]] = ()) -> None:
        """Free slots and those of all holders are every slot of the pool, each once."""
        counts = Counter(self._free)
        for slots in held:
            counts.update(slots)
        doubled = sorted(slot for slot, count in counts.items() if count > 1)
        lost = sorted(set(range(self.num_slots)) - set(counts))
        strange = sorted(set(counts) - set(range(self.num_slots)))
        assert not (doubled or lost or strange), f"slots doubled {doubled}, lost {lost}, unknown {strange}"
