"""What the KV pool cannot hold: blocks that sink to host memory and to files, and come back proved.

It moves blocks for an engine's thread, which it never makes wait for a file: one thread reads, and
`FileWriter`'s writes. What is lost on the way, for want of room or for an error, is a miss later and nothing else.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile

from trivet._native import Gate
from trivet.framework.memory.arrival import Arrival
from trivet.framework.memory.block import checksums
from trivet.framework.memory.chain import Identity, Link
from trivet.framework.memory.demand import Demand
from trivet.framework.memory.file_writer import FileWriter
from trivet.framework.memory.files import Files
from trivet.framework.memory.host_tier import HostBlock, HostTier
from trivet.framework.memory.slot_memory import SlotMemory
from trivet.framework.memory.worth import Worth

_log = logging.getLogger(__name__)


@dataclass
class TierCounts:
    """What happened since the start, in blocks."""

    sunk: int = 0  # copied from slots to host memory
    dropped: int = 0  # could not sink, all of host memory being in use
    fetched: int = 0  # read from files into host memory
    restored_host: int = 0  # copied into slots, from host memory
    restored_files: int = 0  # the same, read from files for that
    corrupt_host: int = 0  # did not prove themselves
    refused: int = 0  # fetches that would have taken longer than computing again
    cheaper: int = 0  # not copied to host memory, or not back, computing them being as soon


@dataclass
class Fetch:
    """Blocks on their way from files to host memory, pinned there until `Tiers.end`."""

    links: Sequence[Link]
    until_s: float  # after it, computing again is sooner
    blocks: list[HostBlock]  # those read so far, and those before them that were here
    num_beside: int  # tokens that the step behind them computes
    num_read: int = 0
    arrival: Arrival | None = None  # of the rest, once its sequence runs
    is_ended: bool = False  # nobody wants it any more
    done: threading.Event = field(default_factory=threading.Event)


class Tiers:
    """Host memory, and files behind it if there are any. All methods are for the engine's thread.

    With files, a slot sinks as soon as it is full, so that a restart finds it; without, when it is reclaimed, if it is
    worth it.
    """

    def __init__(
        self,
        identity: Identity,
        memory: SlotMemory,
        host: HostTier,
        files: Files | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.host = host
        self.files = files
        self.counts = TierCounts()
        self.worth = Worth()
        self.demand = Demand(host.num_blocks)
        self._memory = memory
        self._clock = clock
        self._lock = threading.Lock()  # over the host tier and the pins of its blocks; never held over a file
        self._reads: queue.SimpleQueue[Fetch | Arrival | None] = queue.SimpleQueue()
        self._arrivals: deque[Arrival] = deque()  # before all fetches: a step waits for them
        self._writer: FileWriter | None = None
        self._num_queued = 0  # blocks that fetches in progress may still read
        self._threads: list[threading.Thread] = []
        if files is not None:
            self._writer = FileWriter(files, self.let_go, clock)
            self._start(files, self._writer)

    @property
    def slot_bytes(self) -> int:
        return self._memory.slot_bytes

    def sink(self, slot: int, link: Link) -> None:
        """Keep what is in the slot, unless it is kept already or there is no room."""
        with self._lock:
            found = self.host.find(link.name)
            if found is not None:
                self.host.touch(found)
            if found is not None or (self.files is not None and self.files.holds(link)):
                return
            block = self.host.reserve(link)
        if block is None:
            self.counts.dropped += 1
            return
        start = self._clock()
        self._memory.read_slot(slot, block.payload)
        block.checksums = checksums(block.payload, self._memory.pieces)
        self.worth.sink.learn(self._clock() - start, 1)
        with self._lock:
            if self.host.find(link.name) is None:  # else it came from a file meanwhile
                self.host.keep(block)
            if self._writer is None:
                self.host.unpin(block)
        self.counts.sunk += 1
        if self._writer is not None:
            self._writer.write(block)

    def give_up(self, slot: int, link: Link, block_tokens: int) -> None:
        """The slot is another's next: swap what is in it out unless it is kept, or leave it to be computed again,
        whichever is sooner by what is wanted again of such blocks."""
        with self._lock:
            is_kept = self.host.find(link.name) is not None or (self.files is not None and self.files.holds(link))
        self.demand.give_up(link)
        if is_kept or self.worth.pays_to_sink(block_tokens, self.demand.share):
            self.sink(slot, link)
        else:
            self.counts.cheaper += 1

    def take_if_sooner(self, links: Sequence[Link], block_tokens: int) -> list[HostBlock]:
        """As `take`; none where computing them again takes less time than copying them back."""
        taken = self.take(links)
        if taken and not self.worth.pays_to_restore(block_tokens):
            self.let_go(taken)
            self.counts.cheaper += len(taken)
            return []
        return taken

    def take(self, links: Sequence[Link]) -> list[HostBlock]:
        """The first of these blocks that are in host memory, up to the first that is not; pinned until `restore`."""
        self.demand.want(links)
        taken = []
        with self._lock:
            for link in links:
                block = self.host.find(link.name)
                if block is None:
                    break
                block.num_pins += 1
                taken.append(block)
        return taken

    def restore(self, block: HostBlock, slot: int) -> bool:
        """Copy a block that was taken into the slot; false when it does not prove itself. Unpins it."""
        start = self._clock()
        is_whole = checksums(block.payload, self._memory.pieces) == block.checksums
        if is_whole:
            for piece in self._memory.pieces:
                self._memory.write_slot(slot, piece, block.payload)
            self.worth.restore.learn(self._clock() - start, 1)
        with self._lock:
            if not is_whole:
                self.host.drop(block)
                self.counts.corrupt_host += 1
                _log.error("event=kv_block_corrupt tier=host block=%s", block.link.name.hex())
            else:
                self._restored(block)
            self.host.unpin(block)
        return is_whole

    def let_go(self, blocks: Sequence[HostBlock]) -> None:
        """Unpin blocks that were taken and are not to be restored."""
        with self._lock:
            for block in blocks:
                self.host.unpin(block)

    def fetch(
        self, links: Sequence[Link], block_tokens: int, num_after: int = 0, max_step_tokens: int = 0
    ) -> Fetch | None:
        """Begin to read the first of these blocks that are in files, past those in host memory; None when there is
        nothing to read, or computing them again is sooner. Behind all of them `num_after` tokens are to be computed, at
        most `max_step_tokens` in a step. Who gets one calls `end` when it is through with it."""
        if self.files is None:
            return None
        here = self.take(links)  # what is read is of no use without these
        beyond = links[len(here) :]
        num_blocks = next((i for i, link in enumerate(beyond) if not self.files.holds(link)), len(beyond))
        num_beside = min(num_after + (len(beyond) - num_blocks) * block_tokens, max_step_tokens)
        num_tokens, num_pieces = num_blocks * block_tokens, len(self._memory.pieces)
        patience_s = None
        if num_blocks:
            patience_s = self.worth.patience_s(num_blocks, num_tokens, self._num_queued, num_beside, num_pieces)
            self.counts.refused += patience_s is None
        if patience_s is None:
            self.let_go(here)
            return None
        fetch = Fetch(beyond[:num_blocks], self._clock() + patience_s, here, num_beside)
        with self._lock:
            self._num_queued += num_blocks
        self._reads.put(fetch)
        return fetch

    def is_worth_waiting(self, fetch: Fetch) -> bool:
        return not fetch.done.is_set() and self._clock() < fetch.until_s

    def is_hidden(self, fetch: Fetch, *, is_alone: bool) -> bool:
        """May a step begin now, and the rest of the fetch arrive while it runs? `is_alone`: nobody else would be kept
        waiting with it."""
        if len(self._memory.pieces) == 1:
            return False
        return is_alone or self.worth.is_hidden(len(fetch.links) - fetch.num_read, fetch.num_beside)

    def reserve(self, fetch: Fetch, links: Sequence[Link]) -> list[HostBlock]:
        """Room for the first of these that the fetch is to read, or what it has read of them meanwhile; pinned until
        they have arrived, or `let_go`."""
        wanted = set(fetch.links)
        reserved = []
        with self._lock:
            for link in takewhile(wanted.__contains__, links):
                block = self.host.find(link.name)
                if block is not None:
                    block.num_pins += 1
                elif (block := self.host.reserve(link)) is None:
                    break
                else:
                    block.is_from_files = True
                reserved.append(block)
        return reserved

    def bring(self, fetch: Fetch, blocks: Sequence[HostBlock], slots: Sequence[int], first: int) -> None:
        """What was reserved is to come into these slots, of a sequence from its `first` on, while a step runs: before
        all else, and piece by piece."""
        left_s = fetch.until_s - self._clock()
        arrival = Arrival(blocks, slots, Gate(time.monotonic() + left_s, first, slots))
        with self._lock:
            fetch.arrival = arrival
            self._arrivals.append(arrival)
        self._reads.put(arrival)

    def end(self, fetch: Fetch) -> None:
        """What it has read may be evicted; what it has not read is not read, and its slots are not written to."""
        if fetch.arrival is not None:
            fetch.arrival.end()
        with self._lock:
            fetch.is_ended = True
            for block in fetch.blocks:
                self.host.unpin(block)
            fetch.blocks.clear()

    def pin(self, links: Sequence[Link]) -> None:
        """These are to be found after a restart, too: files keep them. In host memory nobody misses them, as long as
        they are in the pool."""
        if self._writer is not None:
            self._writer.act(lambda files: files.pin(links))

    def forget(self, links: Sequence[Link]) -> None:
        """What these blocks hold is in doubt: nobody finds them again."""
        with self._lock:
            for link in links:
                block = self.host.find(link.name)
                if block is not None:
                    self.host.drop(block)
        if self._writer is not None:
            self._writer.act(lambda files: files.forget(links))

    def settle(self) -> None:
        """Return when everything that sank is on disk."""
        if self._writer is not None:
            self._writer.settle()

    def close(self) -> None:
        """Bring what sank to disk, end the threads, give the memory back. Every fetch has been ended."""
        self._reads.put(None)
        if self._writer is not None:
            self._writer.close()
        for thread in self._threads:
            thread.join()
        if self.files is not None:
            self.files.close()
        self.host.check()
        self.host.close()

    def _start(self, files: Files, writer: FileWriter) -> None:
        """Let one thread read and another write, from now on."""
        for name, run in (("reader", partial(self._read_files, files)), ("writer", writer.run)):
            thread = threading.Thread(target=run, name=f"trivet-kv-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _read_files(self, files: Files) -> None:
        while (item := self._reads.get()) is not None:
            self._bring_arrivals(files)
            if isinstance(item, Fetch):
                self._read_fetch(files, item)

    def _read_fetch(self, files: Files, fetch: Fetch) -> None:
        for link in fetch.links:
            if not self._read_one(files, fetch, link):
                break
            self._bring_arrivals(files)
        self._has_read(fetch)

    def _has_read(self, fetch: Fetch) -> None:
        """All of it, or all that will be."""
        with self._lock:
            self._num_queued -= len(fetch.links)
        fetch.done.set()

    def _read_one(self, files: Files, fetch: Fetch, link: Link) -> bool:
        block = self._begin_read(fetch, link)
        return block is not None and (bool(block.checksums) or self._end_read(files, fetch, block))

    def _begin_read(self, fetch: Fetch, link: Link) -> HostBlock | None:
        """Room for that block of the fetch, or the block itself if it is here already; None when there is none, or
        nobody wants it any more."""
        with self._lock:
            if fetch.is_ended or fetch.arrival is not None:
                return None
            fetch.num_read += 1
            block = self.host.find(link.name)
            if block is None:
                return self.host.reserve(link)
            block.num_pins += 1
            fetch.blocks.append(block)
            return block

    def _end_read(self, files: Files, fetch: Fetch, block: HostBlock) -> bool:
        """Fill it; false when it does not come."""
        start = self._clock()
        found = files.read(block.link, block.payload)
        if found is not None:
            self.worth.block.learn(self._clock() - start, 1)
        with self._lock:
            is_new = found is not None and self.host.find(block.link.name) is None
            if found is not None and is_new:
                block.checksums, block.is_from_files = found, True
                self.host.keep(block)
                self.counts.fetched += 1
            if is_new and not fetch.is_ended:
                fetch.blocks.append(block)
            else:
                self.host.unpin(block)
        return found is not None

    def _bring_arrivals(self, files: Files) -> None:
        while self._arrivals:
            arrival = self._arrivals.popleft()
            num_read = sum(not block.checksums for block in arrival.blocks)
            start = self._clock()
            is_whole = arrival.bring(files, self._memory)
            if is_whole and num_read:
                self.worth.block.learn(self._clock() - start, num_read)
            with self._lock:
                for block in arrival.blocks:
                    if is_whole and self.host.find(block.link.name) is None:
                        self.host.keep(block)
                        self.counts.fetched += 1
                    if is_whole:
                        self._restored(block)
                    self.host.unpin(block)

    def _restored(self, block: HostBlock) -> None:
        """It is in a slot now, too."""
        if block.is_from_files:
            # A block is worth a place here from its second use on: the first copy of it is in the pool now.
            self.host.touch(block, is_last=False)
            block.is_from_files = False
            self.counts.restored_files += 1
        else:
            self.host.touch(block)
            self.counts.restored_host += 1
