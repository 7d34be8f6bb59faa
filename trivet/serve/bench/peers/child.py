"""A child process that answers questions in JSON lines, and is frozen while others answer.

It asks and waits; what a question means is between the asker and the child.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from trivet.base.errors import TrivetError

Answer = dict[str, Any]

START_S = 600.0  # an engine may compile for itself before it is ready
_ANSWER_S = 600.0
_PREFIX = "@answer "  # libraries print to stdout too; our lines are told from theirs by this
_LAST_WORDS = 600  # characters of a failed child's stderr that an error repeats


class Child:
    """Started frozen after its first line, which says that it is ready. Raises TrivetError with the child's own words.

    Frozen (SIGSTOP, the whole session of processes) it takes no cycle from whoever is measured meanwhile, however
    its threads wait.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- as long-lived as the child
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=dict(environment),
            start_new_session=True,
        )  # fmt: skip
        self._unread = b""
        try:
            self.about: Answer = self._next(START_S)
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.close()
            raise

    def ask(self, question: Mapping[str, Any]) -> Answer:
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            return self._next(_ANSWER_S)
        except BrokenPipeError:
            raise self._failure("ended") from None
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.communicate()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, which the next read tells
            os.killpg(self._process.pid, number)

    def _next(self, timeout_s: float) -> Answer:
        """The child's next line; what its libraries print in between is passed over."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                line, found, rest = self._unread.partition(b"\n")
                if found:
                    self._unread = rest
                    text = line.decode(errors="replace")
                    if text.startswith(_PREFIX):
                        answer: Answer = json.loads(text.removeprefix(_PREFIX))
                        return answer
                    continue
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._failure(f"did not answer within {timeout_s:.0f} s")
                read = os.read(self._process.stdout.fileno(), 1 << 16)
                if not read:
                    raise self._failure("ended")
                self._unread += read

    def _failure(self, what: str) -> TrivetError:
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip()[-_LAST_WORDS:]
        return TrivetError(f"{self.name} {what}", f"its last words: {words}" if words else None)
