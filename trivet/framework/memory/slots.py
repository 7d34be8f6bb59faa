"""Which slots of the KV pool are free, held or cold, and how a slot is cut into streams.

Numbers and bytes: it knows no sequence and touches no memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass

from trivet.base.dtypes import DType, row_bytes
from trivet.base.units import MIB, align_up
from trivet.framework.memory.chain import Link
from trivet.framework.memory.reclaim import LeastRecent, Reclaim
from trivet.operators.kv_layout import BLOCK_TOKENS

STREAM_ALIGNMENT = 64  # a cache line, and the widest vector load
SLOT_ALIGNMENT = 4096  # a page, so that one slot can be one direct I/O
DEFAULT_SLOT_BYTES = 2 * MIB
# Half of a sequence's last slot is empty, on average. With 12 KiB for a token 160 tokens would fit 2 MiB: conversations
# of some 1,250 tokens (Azure's trace of 2023) leave 5.9 % of what they hold empty then, and 4.9 % with 128.
MAX_SLOT_TOKENS = 128
MAX_PINNED_SHARE = 0.5  # of a pool: what is pinned nobody else can use


@dataclass(frozen=True)
class SlotLayout:
    """How every slot is cut: `slot_tokens` tokens of each stream, stream after stream."""

    slot_tokens: int
    offsets: Mapping[str, int]  # stream → bytes from the start of its slot
    stride_bytes: int  # from one slot to the next

    def pool_bytes(self, num_slots: int) -> int:
        return num_slots * self.stride_bytes

    def pieces(self, streams: Sequence[str]) -> tuple[slice, ...]:
        """The bytes of a slot, cut so that each of `streams` is whole with one piece more; in one piece for none.

        They are all the streams, in the order in which they lie.
        """
        assert not streams or list(streams) == list(self.offsets), "streams come in another order than they lie in"
        starts = [self.offsets[name] for name in streams] or [0]
        return tuple(slice(start, end) for start, end in zip(starts, [*starts[1:], self.stride_bytes], strict=True))

    def slots_for(self, num_tokens: int) -> int:
        """How many slots hold `num_tokens` tokens of one sequence."""
        return -(-num_tokens // self.slot_tokens)


def kv_token_bytes(num_heads: int, head_dim: int, dtype: DType) -> int:
    """What one token costs in a stream of kind "kv": a key and a value per KV head, in int8 with their scales."""
    return 2 * num_heads * row_bytes(head_dim, dtype)


def lay_out(
    token_bytes: Mapping[str, int], slot_bytes: int = DEFAULT_SLOT_BYTES, slot_tokens: int | None = None
) -> SlotLayout:
    """Slots of at most `slot_bytes` for streams of so many bytes per token; or of `slot_tokens` tokens if given.

    A slot holds the most whole blocks that fit, 16 tokens each, as attention walks them, up to 128 tokens; and never
    less than one block: where that alone is larger than `slot_bytes`, the slot is as large (read `stride_bytes`).
    """
    assert token_bytes, "a pool needs a stream"
    if slot_tokens is not None:
        return _cut(token_bytes, slot_tokens)
    tokens = BLOCK_TOKENS
    while tokens < MAX_SLOT_TOKENS and _cut(token_bytes, tokens + BLOCK_TOKENS).stride_bytes <= slot_bytes:
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
    """Hands out slots by number. A holder keeps its own list, in the order of the positions it stores there.

    A slot is free, held, or cold. A full slot may be given a name; then others may hold it too, and when nobody does it
    turns cold: still found by its name, and handed out again only once no free slot is left, by `reclaim`'s choice.
    What is in a pinned slot never is: the pool itself is one of its holders.
    """

    def __init__(self, num_slots: int, slot_tokens: int, reclaim: Reclaim | None = None) -> None:
        assert num_slots > 0, f"a pool of {num_slots} slots"
        assert slot_tokens > 0, f"slots of {slot_tokens} tokens"
        self.num_slots = num_slots
        self.slot_tokens = slot_tokens
        self.on_reclaim: Callable[[int, Link], None] = lambda slot, name: None  # the last look at what is in a slot
        self._free = list(range(num_slots - 1, -1, -1))  # a stack: the warmest slot goes out again first
        self._cold = LeastRecent() if reclaim is None else reclaim  # an empty one is false
        self._num_holders = [0] * num_slots
        self._names: list[Link | None] = [None] * num_slots
        self._named: dict[Link, int] = {}
        self._to_pin: set[Link] = set()
        self._pinned: set[int] = set()

    @property
    def num_free(self) -> int:
        """Slots that can be handed out, the cold ones included."""
        return len(self._free) + len(self._cold)

    @property
    def num_pinned(self) -> int:
        """Slots that are pinned now. At most `num_to_pin`, which counts what is not here yet too."""
        return len(self._pinned)

    @property
    def num_to_pin(self) -> int:
        return len(self._to_pin)

    @property
    def usage(self) -> float:
        """The share of slots that are held, 0 to 1."""
        return 1 - self.num_free / self.num_slots

    def missing(self, held: Sequence[int], num_tokens: int) -> int:
        """How many slots more than `held` it takes to store `num_tokens` tokens."""
        return max(0, -(-num_tokens // self.slot_tokens) - len(held))

    def fits(self, held: Sequence[int], num_tokens: int) -> bool:
        """Can `held` grow to `num_tokens` tokens? Also asked of what was found and would be held first."""
        num_cold = sum(not self._num_holders[slot] for slot in held)
        return self.missing(held, num_tokens) <= self.num_free - num_cold

    def grow(self, held: MutableSequence[int], num_tokens: int) -> None:
        """Append to `held` the slots it misses for `num_tokens` tokens. The caller has asked `fits`."""
        assert self.fits(held, num_tokens), f"{self.missing(held, num_tokens)} slots wanted, {self.num_free} free"
        for _ in range(self.missing(held, num_tokens)):
            slot = self._free.pop() if self._free else self._reclaimed()
            self._num_holders[slot] = 1
            held.append(slot)

    def release(self, held: MutableSequence[int]) -> None:
        """Take all of `held` back and empty it. What has a name and no other holder turns cold, its last slot first:
        without those before it, a slot is of no use."""
        for depth in range(len(held) - 1, -1, -1):
            slot = held[depth]
            self._num_holders[slot] -= 1
            if self._num_holders[slot]:
                continue
            name = self._names[slot]
            if name is None:
                self._free.append(slot)
            else:
                self._cold.add(slot, name, depth)
        del held[:]

    def find(self, names: Iterable[Link]) -> list[int]:
        """The slots of the first of `names`, up to the first that is not here."""
        found = []
        for name in names:
            if name not in self._named:
                break
            found.append(self._named[name])
        return found

    def share(self, held: MutableSequence[int], found: Iterable[int]) -> None:
        """Append to `held` slots that were found: full ones, which nobody writes to any more."""
        for slot in found:
            assert self._names[slot] is not None, f"slot {slot} is shared and has no name"
            if not self._num_holders[slot]:
                self._cold.remove(slot)
            self._num_holders[slot] += 1
            held.append(slot)

    def name(self, slot: int, name: Link) -> None:
        """The slot is full, of what `name` stands for. It keeps none where another slot has the same in it already."""
        assert self._num_holders[slot] and self._names[slot] is None, f"slot {slot} is named twice or held by nobody"
        if name not in self._named:
            self._names[slot] = name
            self._named[name] = slot
            if name in self._to_pin:
                self._pin(slot)

    def can_pin(self, names: Iterable[Link]) -> bool:
        """Would the pool still have enough for others?"""
        return len(self._to_pin.union(names)) <= MAX_PINNED_SHARE * self.num_slots

    def pin(self, names: Iterable[Link]) -> None:
        """What these stand for is not given up any more, from now on where it is here, else once it is. The caller has
        asked `can_pin`."""
        added = set(names) - self._to_pin
        assert self.can_pin(added), f"{len(added)} slots to pin, {self.num_to_pin} of {self.num_slots} are"
        self._to_pin |= added
        for name in added & self._named.keys():
            slot = self._named[name]
            if not self._num_holders[slot]:
                self._cold.remove(slot)
            self._pin(slot)

    def forget(self, slots: Iterable[int]) -> None:
        """What is in these slots is in doubt: whoever holds them goes on, and nobody finds them again."""
        for slot in slots:
            name, self._names[slot] = self._names[slot], None
            if name is None:
                continue
            del self._named[name]
            if not self._num_holders[slot]:
                self._cold.remove(slot)
                self._free.append(slot)
            elif slot in self._pinned:  # until what it stands for is computed again, it has no slot
                self._pinned.remove(slot)
                self._num_holders[slot] -= 1
                if not self._num_holders[slot]:
                    self._free.append(slot)

    def check(self, held: Iterable[Sequence[int]] = ()) -> None:
        """Every slot is free, cold, or held by as many holders as counted, those pinned by the pool too; names lead to
        slots and back."""
        counts = Counter([*self._pinned, *(slot for slots in held for slot in slots)])
        empty = Counter([*self._free, *self._cold])
        doubled = sorted(slot for slot in range(self.num_slots)
                         if counts[slot] > self._num_holders[slot] or empty[slot] + (counts[slot] > 0) > 1)  # fmt: skip
        lost = sorted(slot for slot in range(self.num_slots)
                      if counts[slot] < self._num_holders[slot] or empty[slot] + counts[slot] == 0)  # fmt: skip
        strange = sorted((set(counts) | set(empty)) - set(range(self.num_slots)))
        assert not (doubled or lost or strange), f"slots doubled {doubled}, lost {lost}, unknown {strange}"
        named = {name: slot for slot, name in enumerate(self._names) if name is not None}
        assert named == self._named, "a name leads to a slot of another"
        assert all(self._names[slot] is not None for slot in self._cold), "a cold slot has no name"
        assert all(self._names[slot] is None for slot in self._free), "a free slot has a name"
        assert self._pinned == {self._named[name] for name in self._to_pin & self._named.keys()}, "a pin is lost"

    def _pin(self, slot: int) -> None:
        self._num_holders[slot] += 1
        self._pinned.add(slot)

    def _reclaimed(self) -> int:
        slot = self._cold.take()
        name, self._names[slot] = self._names[slot], None
        assert name is not None, "a cold slot has a name"
        del self._named[name]
        self.on_reclaim(slot, name)
        return slot
