"""The real tiers on the clock of a simulation: what they decide is the engine's own code, what moving takes is a
bandwidth, and what their threads do is done here, in turn.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from trivet._native import Gate
from trivet.framework.engine.prefixes import NOBODY
from trivet.framework.engine.replay.clock import Clock
from trivet.framework.engine.replay.timed_stores import Behind, TimedFiles, TimedMemory
from trivet.framework.memory.chain import Link
from trivet.framework.memory.file_writer import FileWriter
from trivet.framework.memory.files import Files
from trivet.framework.memory.host_tier import HostBlock, HostTier, blocks_in
from trivet.framework.memory.tiers import Fetch, Tiers


@dataclass(frozen=True)
class _Coming:
    """Blocks that come while a step runs, piece by piece, at an even rate."""

    gate: Gate
    start_s: float
    end_s: float
    until_s: float  # later ones are not waited for


class TimedTiers(Tiers):
    """Tiers whose threads are two clocks beside the engine's: `advance` runs them until its time. Reading and writing
    do not slow each other down."""

    def __init__(self, behind: Behind, clock: Clock) -> None:
        self._now = clock
        self._read_clock, self._write_clock = Clock(), Clock()
        self._reading: Fetch | None = None
        self._filling: HostBlock | None = None  # of it
        self._writing: HostBlock | None = None
        self._coming: _Coming | None = None
        self._store = None if behind.folder_bytes is None else TimedFiles(behind.folder_bytes, behind, clock)
        memory = TimedMemory(behind, clock)
        num_blocks = blocks_in(behind.host_bytes, behind.slot_bytes)
        super().__init__(
            NOBODY, memory, HostTier(num_blocks * memory.slot_bytes, memory.slot_bytes), self._store, clock
        )

    @property
    def read_s(self) -> float:
        """What reading files took so far."""
        return 0.0 if self._store is None else self._store.read_s

    def advance(self) -> None:
        """The threads catch up with the engine."""
        now_s = self._now()
        while self._read_on(now_s) or self._write_on(now_s):
            pass
        if self._filling is None:  # it was idle
            self._read_clock.now_s = max(self._read_clock.now_s, now_s)
        if self._writing is None:
            self._write_clock.now_s = max(self._write_clock.now_s, now_s)

    def wait_for(self, done: threading.Event, most_s: float) -> None:
        """Let time pass until that is set, but no more than this."""
        until_s = self._now() + most_s
        while not done.is_set() and self._read_on(until_s):
            pass
        self._now.now_s = max(self._now(), self._read_clock.now_s) if done.is_set() else until_s

    def fetch(
        self, links: Sequence[Link], block_tokens: int, num_after: int = 0, max_step_tokens: int = 0
    ) -> Fetch | None:
        fetch = super().fetch(links, block_tokens, num_after, max_step_tokens)
        if fetch is not None:
            fetch.done = _Done(self)
        return fetch

    def bring(self, fetch: Fetch, blocks: Sequence[HostBlock], slots: Sequence[int], first: int) -> None:
        super().bring(fetch, blocks, slots, first)
        if self._filling is not None:  # the thread ends that first
            self._fill(self._filling)
        assert fetch.arrival is not None
        start_s = self._read_clock.now_s = max(self._read_clock.now_s, self._now())
        with self._now.of(self._read_clock):
            self._bring_arrivals(self._files)
        self._coming = _Coming(fetch.arrival.gate, start_s, self._read_clock.now_s, fetch.until_s)

    def stall_s(self, gates: Sequence[Gate], step_s: float) -> float:
        """How long a step that begins now, and computes for `step_s`, waits at these gates before it has computed: as
        though a layer waited for all blocks of its own before it begins, which is what `Worth` reckons with."""
        coming = self._coming
        if coming is None or coming.gate not in gates:
            return 0.0
        num_pieces, stalled_s = len(self._memory.pieces), 0.0
        for number in range(num_pieces):
            wanted_s = self._now() + stalled_s + step_s * number / num_pieces
            comes_s = coming.start_s + (coming.end_s - coming.start_s) * (number + 1) / num_pieces
            if comes_s > max(wanted_s, coming.until_s):
                coming.gate.fail()
                return stalled_s + max(0.0, coming.until_s - wanted_s)
            stalled_s += max(0.0, comes_s - wanted_s)
        return stalled_s

    def close(self) -> None:
        while self._read_on(inf) or self._write_on(inf):
            pass
        super().close()

    def _start(self, files: Files, writer: FileWriter) -> None:
        """No threads: `advance` runs what they would."""

    def _read_on(self, until_s: float) -> bool:
        """The reader's next block; false when it has nothing to read, or is not through with it by then."""
        if self._filling is None and not self._begin_next():
            return False
        if (block := self._filling) is not None:
            seconds = self._files.block_s if self._files.holds(block.link) else 0.0
            if self._read_clock.now_s + seconds > until_s:
                return False
            self._fill(block)
        return True

    def _begin_next(self) -> bool:
        """On the way to the next block to fill; false when nothing is wanted."""
        if self._reading is None:
            try:
                item = self._reads.get_nowait()
            except queue.Empty:
                return False
            self._reading = item if isinstance(item, Fetch) else None  # what arrives was brought at once
            return True
        fetch = self._reading
        block = self._begin_read(fetch, fetch.links[fetch.num_read]) if fetch.num_read < len(fetch.links) else None
        if block is None:
            self._end_fetch()
        elif not block.checksums:
            self._filling = block
        return True

    def _fill(self, block: HostBlock) -> None:
        assert self._reading is not None, "a block is read for nobody"
        with self._now.of(self._read_clock):
            has_come = self._end_read(self._files, self._reading, block)
        self._filling = None
        if not has_come or self._reading.num_read == len(self._reading.links):
            self._end_fetch()

    def _end_fetch(self) -> None:
        assert self._reading is not None
        self._has_read(self._reading)
        self._reading = None

    def _write_on(self, until_s: float) -> bool:
        """The writer's next block, likewise."""
        if self._writer is None:
            return False
        if self._writing is None:
            item = self._writer.next(0)
            if not isinstance(item, HostBlock):
                if item is not None:
                    item(self._files)
                return item is not None
            self._writing = item
        block = self._writing
        seconds = 0.0 if self._files.holds(block.link) else self._files.block_s
        if self._write_clock.now_s + seconds > until_s:
            return False
        with self._now.of(self._write_clock):
            self._writer.publish([block])
        self._writing = None
        return True

    @property
    def _files(self) -> TimedFiles:
        assert self._store is not None, "something moves to files, and there are none"
        return self._store


class _Done(threading.Event):
    """Of a fetch. Who waits for it lets the time pass."""

    def __init__(self, tiers: TimedTiers) -> None:
        super().__init__()
        self._tiers = tiers

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None, "nobody waits for ever"
        self._tiers.wait_for(self, timeout)
        return self.is_set()
