"""Runs the driver's tools, all at once and not for long; a captured tree keeps what they printed in files.

npu-smi has been seen to hang while its device is hot or resetting, in a state that not even a kill ends: whoever does
not answer in time is left behind. Nothing here changes a device.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trivet.driver.npu_facts import Command, CommandOutcome
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.files import is_live, read_text
from trivet.driver.readers.record import keep

TIMEOUT_S = 20.0  # for all tools together
# Where the driver puts them, which need not be on the path of a service. Source: vllm-ascend installation guide.
_DIRECTORIES = ("/usr/local/bin", "/usr/local/sbin", "/usr/local/Ascend/driver/tools", "/usr/bin", "/usr/sbin")
_MAX_BYTES = 1 << 20
_NUM_AT_ONCE = 32
_WAIT_AFTER_KILL_S = 0.1

# Said by a tool that works all the same.
_NOISE = ("DrvMngGetConsoleLogLevel failed",)
_COMPLAINT = re.compile(r"fail|error|denied|not support|not found|no such|invalid|unable|cannot", re.IGNORECASE)
_FIELD = re.compile(r"[\w (),/%#.-]{1,50}:")
_ABSENT = ("command not found", "No such file")
_DCMI = re.compile(r"(?<![\w.])-(?:8\d{3}|9998|9999)\b")


@dataclass(frozen=True)
class Output:
    command: Command
    text: str


def output_path(words: Sequence[str]) -> str:
    """Where a captured tree keeps what a command printed: `captured/npu-smi-info-t-board-i-0.txt`."""
    return f"captured/{'-'.join(word.strip('-') for word in words)}.txt"


def ask(
    root: Path, captured: Captured, commands: Sequence[tuple[str, ...]], deadline: float
) -> tuple[Output | None, ...]:
    """What each command answers; None where a captured tree has nothing of it, or no time is left to ask.

    `deadline` is in the seconds of time.monotonic().
    """
    if not is_live(root):
        return tuple(_captured(root, captured, words) for words in commands)
    found = {words[0]: _locate(words[0]) for words in commands}
    if not any(found.values()):
        return tuple(_run(words, None, deadline) for words in commands)
    with ThreadPoolExecutor(_NUM_AT_ONCE) as pool:
        outputs = tuple(pool.map(lambda words: _run(words, found[words[0]], deadline), commands))
    for words, output in zip(commands, outputs, strict=True):
        if output is not None and output.command.outcome != "absent":  # that it said nothing is an answer too
            keep(output_path(words), output.text)
    return outputs


def _locate(tool: str) -> str | None:
    return shutil.which(tool, path=os.pathsep.join(_DIRECTORIES)) or shutil.which(tool)


def _captured(root: Path, captured: Captured, words: tuple[str, ...]) -> Output | None:
    line = " ".join(words)
    text, run = read_text(root, output_path(words)), captured.commands.get(line)
    if run is not None and run.outcome in ("timed_out", "absent"):
        return Output(Command(line, run.outcome, run.exit_code, run.seconds, None, None), text or "")
    if text is None:
        return None
    return answer(line, text, run.exit_code if run else None, run.seconds if run else None)


def _run(words: tuple[str, ...], tool: str | None, deadline: float) -> Output | None:
    line, start = " ".join(words), time.monotonic()
    if tool is None:
        return Output(Command(line, "absent", None, None, None, None), "")
    if start >= deadline:
        return None
    with tempfile.TemporaryFile() as file:  # not a pipe: nobody may be there to read from it
        try:
            process = subprocess.Popen(
                [tool, *words[1:]], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                env=os.environ | {"LC_ALL": "C"}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Output(Command(line, "failed", None, None, error.strerror, None), "")
        try:
            code: int | None = process.wait(timeout=deadline - start)
        except subprocess.TimeoutExpired:
            code = None
            _kill(process)
        seconds = time.monotonic() - start
        text = _content(file)
    if code is None:
        return Output(Command(line, "timed_out", None, seconds, None, None), text)
    return answer(line, text, code, seconds)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Its whole group, and without waiting for the end of what may not end."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_WAIT_AFTER_KILL_S)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MAX_BYTES).decode(errors="replace")


def answer(line: str, text: str, exit_code: int | None, seconds: float | None) -> Output:
    """What was printed, judged: a complaint beside an answer is kept, and only one in its place is a failure."""
    complaint = _complaint(text)
    is_failed = exit_code not in (0, None)
    if complaint is None and is_failed:
        complaint = next((row.strip()[:200] for row in text.splitlines() if row.strip()), None)
    code = _DCMI.search(complaint or "")
    if complaint is not None and (code is not None or not any(_is_content(row.strip()) for row in text.splitlines())):
        is_failed = True
    outcome: CommandOutcome = "failed" if is_failed else "answered"
    return Output(Command(line, outcome, exit_code, seconds, complaint, int(code[0]) if code else None), text)


def _complaint(text: str) -> str | None:
    """The first line that speaks of a failure, beside the content."""
    for line in text.splitlines()[:50]:
        row = line.strip()[:200]
        if not _is_content(row) and _COMPLAINT.search(row) and not any(noise in row for noise in _NOISE):
            return row
    return None


def _is_content(row: str) -> bool:
    """A row of a table, or `name : value`."""
    if row.startswith(("|", "+")):
        return True
    return _FIELD.match(row) is not None and not any(words in row for words in _ABSENT)
