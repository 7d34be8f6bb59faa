"""Blocks on their way from host memory to files, and what else changes files: done in turn, by a thread of its own.

While there is nothing to write, it proves what was written before and looks for what other processes wrote.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from trivet.framework.memory.files import Files
from trivet.framework.memory.host_tier import HostBlock

_MAX_BATCH = 16  # blocks published together: one fsync of the folder for all
_SCRUB_PAUSE_S = 0.25  # between two blocks read only to be proved, while there is nothing to write
_ROUND_PAUSE_S = 3600.0  # between two rounds of that over all blocks
_LOOK_PAUSE_S = 60.0  # between two looks at what other processes wrote

Act = Callable[[Files], None]  # what is asked for between two batches


class FileWriter:
    """`run` is for its thread, all else for the engine's, which waits nowhere but in `settle`."""

    def __init__(self, files: Files, unpin: Callable[[Sequence[HostBlock]], None], clock: Callable[[], float]) -> None:
        """`unpin` is called with blocks that are written: their bytes may go."""
        self._files = files
        self._unpin = unpin
        self._clock = clock
        self._asked: queue.SimpleQueue[HostBlock | Act] = queue.SimpleQueue()
        self._is_closed = False
        self._next_round_s = clock()

    def write(self, block: HostBlock) -> None:
        """Bring the block, which is filled and pinned, to a file."""
        self._asked.put(block)

    def act(self, act: Act) -> None:
        """Do that to the files, once what was asked for before is done."""
        self._asked.put(act)

    def settle(self) -> None:
        """Return when everything that was asked for is done."""
        told = threading.Event()
        self.act(lambda files: told.set())
        told.wait()

    def close(self) -> None:
        """The thread ends when everything that was asked for is done."""
        self.act(self._end)

    def run(self) -> None:
        """Until it is closed."""
        pause_s = _SCRUB_PAUSE_S
        while not self._is_closed:
            asked = self.next(pause_s)
            if asked is None:
                pause_s = self._idle()
            batch = []
            while isinstance(asked, HostBlock):
                batch.append(asked)
                asked = self.next(0) if len(batch) < _MAX_BATCH else None
            if batch:
                self.publish(batch)
            if asked is not None:
                asked(self._files)

    def next(self, pause_s: float) -> HostBlock | Act | None:
        """What to write or do next; None when there was nothing for so long."""
        try:
            return self._asked.get(block=pause_s > 0, timeout=pause_s)
        except queue.Empty:
            return None

    def publish(self, batch: Sequence[HostBlock]) -> None:
        """Bring these to files now."""
        self._files.publish([(block.link, block.payload, block.checksums) for block in batch])
        self._unpin(batch)

    def _idle(self) -> float:
        """Something useful while there is nothing to write; the seconds until the next."""
        if self._clock() >= self._next_round_s:
            if self._files.scrub_next():
                return _SCRUB_PAUSE_S
            self._next_round_s = self._clock() + _ROUND_PAUSE_S
        self._files.look()
        return _LOOK_PAUSE_S

    def _end(self, files: Files) -> None:
        self._is_closed = True
