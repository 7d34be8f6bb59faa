"""A server in a process of its own, from when it is ready until it is told to end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from trivet.base.errors import TrivetError
from trivet.serve.bench.peers.child import START_S
from trivet.serve.bench.peers.environments import clean_environment

_STOP_S = 20.0  # to drain; then it is killed
_LAST_WORDS = 600


@dataclass(frozen=True)
class Start:
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)  # beside this process's own


class ServerProcess:
    """`ready` is the path that answers 200 once it is. Raises TrivetError with its own words where that never comes."""

    def __init__(self, name: str, start: Start, ready: str, port: int) -> None:
        self.port = port
        self._name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- as long-lived as the server
        try:
            self._process = subprocess.Popen(
                start.command, stdout=self._log, stderr=self._log, env=clean_environment(start.environment),
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise TrivetError(f"{name}: {start.command[0]}: {error.strerror}") from None
        try:
            self._wait(ready)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for number, timeout_s in ((signal.SIGTERM, _STOP_S), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self._log.close()

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
            return str(response.read().decode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _wait(self, path: str) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise TrivetError(f"{self._name} ended before it was ready", self._last_words())
            try:
                self.get(path)
                return
            except (urllib.error.URLError, OSError):  # not listening yet, or 503 while it loads
                time.sleep(0.1)
        raise TrivetError(f"{self._name} was not ready within {START_S:.0f} s", self._last_words())

    def _last_words(self) -> str | None:
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip()[-_LAST_WORDS:]
        return f"its last words: {words}" if words else None
