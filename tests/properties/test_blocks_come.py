"""Steps of real kernels while blocks of a prefix come to their slots, or fail to, at any point of a step. What comes
makes no difference to a bit, and what does not come none to the others of its step nor to the steps after it."""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import islice, product

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.system.tiny import SLOT_TOKENS, cpu_plan
from trivet._native import Gate
from trivet.base.dtypes import Array, DType
from trivet.framework.graph.cpu_plan import CpuPlan
from trivet.framework.graph.plan import Batch, Limits

NEVER_S = 1e300
MAX_STEP = 96
LIMITS = Limits(max_tokens=MAX_STEP + 1, max_sequences=2, max_rows=MAX_STEP + 1, max_context=720)
NUM_SLOTS = LIMITS.max_context // SLOT_TOKENS  # of a sequence
LONG = [3 + (7 * i * i + i) % 200 for i in range(720)]  # whose blocks come: two spans of attention
SHORT = [5 + 11 * i % 190 for i in range(100)]  # what else is in the step
SLOTS = np.arange(2 * NUM_SLOTS, dtype=np.int32)[::-1].reshape(2, NUM_SLOTS)


def step(pieces: list[tuple[int, list[int], int, int]]) -> Batch:
    """Of these (which sequence, its tokens, from which position, to which), with the logits of every token."""
    lengths = [end - start for _, _, start, end in pieces]
    return Batch(
        tokens=np.concatenate([np.array(tokens[start:end], np.int32) for _, tokens, start, end in pieces]),
        positions=np.concatenate([np.arange(start, end, dtype=np.int32) for _, _, start, end in pieces]),
        starts=np.cumsum([0, *lengths], dtype=np.int32),
        slots=SLOTS[[number for number, *_ in pieces]],
        rows=np.arange(sum(lengths), dtype=np.int32),
    )


@cache
def computed(dtype: DType, num_threads: int) -> tuple[CpuPlan, list[Array], Array]:
    """A plan with both sequences in its slots; the logits of their tokens; the bytes of its slots."""
    plan = cpu_plan("llama", dtype, num_threads=num_threads, num_slots=SLOTS.size, limits=LIMITS, is_fetched=True)
    logits = [
        np.concatenate([plan.run(step([(number, tokens, start, min(start + MAX_STEP, len(tokens)))])).copy()
                        for start in range(0, len(tokens), MAX_STEP)])
        for number, tokens in enumerate((LONG, SHORT))
    ]  # fmt: skip
    slots = np.empty((SLOTS.size, plan.slot_bytes), np.uint8)
    for number, into in enumerate(slots):
        plan.read_slot(number, into)
    return plan, logits, slots


class Steps(RuleBasedStateMachine):
    """At most one step runs at a time, on a thread of its own, and waits there."""

    @initialize(dtype=st.sampled_from(["bfloat16", "float32"]), num_threads=st.sampled_from([1, 2, 3]))
    def bind(self, dtype: DType, num_threads: int) -> None:
        self.plan, self.logits, self.slots = computed(dtype, num_threads)
        self.thread = ThreadPoolExecutor(1)
        self.running: Future[Array] | None = None

    @precondition(lambda self: self.running is None)
    @rule(num_here=st.integers(0, 38), num_come=st.integers(1, 38), num_tokens=st.integers(1, MAX_STEP),
          at=st.integers(0, len(SHORT) - 1))  # fmt: skip
    def begin(self, num_here: int, num_come: int, num_tokens: int, at: int) -> None:
        """Some of its blocks are here, some are still to come, and it computes tokens behind those."""
        start = min(num_here + num_come, 39) * SLOT_TOKENS
        self.end = start + num_tokens
        self.start, self.at = start, at
        coming = SLOTS[0, num_here : start // SLOT_TOKENS]
        self.pieces = iter(product(self.plan.pieces, coming))
        for number in coming:
            self.plan.write_slot(number, slice(0, self.plan.slot_bytes), np.full(self.plan.slot_bytes, 255, np.uint8))
        self.gate = Gate(NEVER_S, num_here, coming.tolist())
        batch = step([(1, SHORT, at, at + 1), (0, LONG, start, self.end)])
        self.running = self.thread.submit(lambda: self.plan.run(batch, [self.gate]).copy())

    @precondition(lambda self: self.running is not None)
    @rule(num_pieces=st.integers(1, 60))
    def bring(self, num_pieces: int) -> None:
        for piece, number in islice(self.pieces, num_pieces):
            self.plan.write_slot(number, piece, self.slots[number])
            self.gate.advance()

    @precondition(lambda self: self.running is not None)
    @rule()
    def finish(self) -> None:
        self.bring(len(self.plan.pieces) * SLOTS.size)
        found = self.landed()

        assert self.logits[1][self.at].tobytes() == found[0].tobytes()
        assert self.logits[0][self.start : self.end].tobytes() == found[1:].tobytes()
        assert not self.gate.has_failed

    @precondition(lambda self: self.running is not None and self.gate.num_pieces < self.num_wanted)
    @rule()
    def fail(self) -> None:
        """What is not there will never be. Its step ends; then somebody else computes what was to come."""
        self.gate.fail()
        found = self.landed()
        for number, contents in enumerate(self.slots):
            self.plan.write_slot(number, slice(0, self.plan.slot_bytes), contents)

        assert self.logits[1][self.at].tobytes() == found[0].tobytes()

    @property
    def num_wanted(self) -> int:
        return len(self.plan.pieces) * self.gate.num_slots

    def landed(self) -> Array:
        assert self.running is not None
        found, self.running = self.running.result(), None
        assert self.gate.num_waiting == 0
        return found

    def teardown(self) -> None:
        if getattr(self, "running", None) is not None:
            self.fail()
        if hasattr(self, "thread"):
            self.thread.shutdown()


TestSteps = Steps.TestCase
TestSteps.settings = settings(max_examples=settings().max_examples // 4, stateful_step_count=20)
