"""Processes that load together, one of which sends the others bytes, over PyTorch's gloo.

The bytes are the host's: whoever receives them compares checksums before a device gets them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from trivet.base.errors import ResourceError, TrivetError

T = TypeVar("T")

# A rank that ends is known at once. This is for one that neither ends nor goes on, and longer than any reads its own.
TIMEOUT_S = 600.0


class TorchGroup:
    """This process as rank `rank` of `num_ranks`, who meet at `address` (host:port, rank 0's).

    Raises ResourceError when they do not meet in time. What waits here for others does so for `timeout_s` at most.
    """

    def __init__(self, rank: int, num_ranks: int, address: str, timeout_s: float = TIMEOUT_S) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._timeout_s = timeout_s
        self._is_over = False
        host, _, port = address.rpartition(":")
        waits = timedelta(seconds=timeout_s)
        try:
            self._group = _interruptibly(
                lambda: dist.ProcessGroupGloo(
                    dist.TCPStore(host, int(port), num_ranks, is_master=rank == 0, timeout=waits),
                    rank,
                    num_ranks,
                    waits,
                )
            )
        except (RuntimeError, ValueError) as error:
            raise ResourceError(
                f"rank {rank}: {num_ranks} ranks did not meet at {address} in {timeout_s:g} s: {_first_line(error)}",
                "start every rank with the same address, that of rank 0's host, and a port that is free there",
            ) from None

    def broadcast(self, address: int, num_bytes: int) -> None:
        """Bytes from rank 0's memory to the same number at `address` here. Raises ResourceError when one is gone."""
        held = (ctypes.c_char * num_bytes).from_address(address)
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._do("bytes", lambda: self._group.broadcast([torch.frombuffer(held, dtype=torch.uint8)], options))

    def agree(self, failure: TrivetError | None = None) -> None:
        """Return when every rank is here and well; else raise on all of them what the first of those failed of."""
        failed = torch.tensor([self.num_ranks if failure is None else self.rank])
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self._do("whether all go on", lambda: self._group.allreduce([failed], options))
        first = int(failed)
        if first == self.num_ranks:
            return
        sentence = self._sentence(first, failure)
        self._is_over = True
        raise ResourceError(f"rank {first}: {sentence}", "mend it there, then start all ranks again")

    def tell(self, failure: TrivetError) -> None:
        """Let the others know, when they next ask whether all go on; those who know of a failure are not told again."""
        if self._is_over:
            return
        try:
            self.agree(failure)
        except ResourceError:
            return

    def close(self) -> None:
        """Leave. Whoever still waits for this rank fails at once."""
        self._is_over = True
        del self._group

    def _sentence(self, first: int, failure: TrivetError | None) -> str:
        """What the rank `first` says, which has it from `failure`."""
        text = torch.zeros(_SENTENCE_BYTES, dtype=torch.uint8)
        if failure is not None and self.rank == first:
            said = failure.message.encode()[:_SENTENCE_BYTES]
            text[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
        options = dist.BroadcastOptions()
        options.rootRank = first
        self._do("why not", lambda: self._group.broadcast([text], options))
        return bytes(text.numpy()).rstrip(b"\0").decode(errors="replace")

    def _do(self, what: str, begin: Callable[[], dist.Work]) -> None:
        assert not self._is_over, "the group has ended"
        try:
            _interruptibly(lambda: begin().wait())
        except RuntimeError as error:
            self._is_over = True
            raise ResourceError(
                f"rank {self.rank}: waited for {what} from {self.num_ranks - 1} other ranks: {_first_line(error)}",
                f"one of them ended, or was silent for {self._timeout_s:g} s: see what it said",
            ) from None


_SENTENCE_BYTES = 1024


def _interruptibly(act: Callable[[], T]) -> T:
    """What `act` gives, which waits where Ctrl-C is not heard: so it waits in a thread, and this one hears."""
    made: Future[T] = Future()

    def run() -> None:
        try:
            made.set_result(act())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=run, name="rank", daemon=True).start()
    return made.result()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
