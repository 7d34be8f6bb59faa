"""Has the serving interpreter try the stack in children of its own, each for a bounded time. Only on request.

The doctor's own process imports nothing of the stack, so that a broken one breaks a child and no more.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, get_args

from trivet.driver.probe_facts import MasterProbe, StackProbe, Step, Trial
from trivet.driver.stack_facts import Stack

_CHILD = Path(__file__).with_name("stack_child.py")
# The first call to a device copies kernels there and may take tens of seconds. Source: FAQ of the CANN runtime.
TIMEOUT_S = 90.0
_CONNECT_S = 2.0
_MAX_BYTES = 1 << 20
_MAX_SAID = 500
# What each part is tried for: the package that is there, or CANN for "acl".
_PARTS = {"acl": None, "torch": "torch-npu", "mindspore": "mindspore"}


def probe_stack(stack: Stack, timeout_s: float = TIMEOUT_S) -> StackProbe | None:
    """None where there is nothing to try: no interpreter, or neither CANN nor a framework."""
    python = stack.python
    if python is None or not python.executable:
        return None
    names = {package.name for package in python.packages or ()}
    has_cann = any(cann.exists for cann in stack.cann)
    parts = [part for part, name in _PARTS.items() if (has_cann if name is None else name in names)]
    trials = tuple(trial for part in parts for trial in _run(python.executable, part, timeout_s))
    return StackProbe(python.executable, trials) if trials else None


def probe_master(environment: dict[str, str] | None) -> MasterProbe | None:
    """Whether the address at which ranks meet takes a connection; None where no variable names one."""
    host, port = (environment or {}).get("MASTER_ADDR"), (environment or {}).get("MASTER_PORT", "")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        return None
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S):
            return MasterProbe(f"{host}:{port}", None)
    except (OSError, UnicodeError) as error:
        return MasterProbe(f"{host}:{port}", getattr(error, "strerror", None) or str(error) or "it timed out")


def _run(executable: str, part: str, timeout_s: float) -> Iterator[Trial]:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(
                [executable, str(_CHILD), part], stdin=subprocess.DEVNULL, stdout=output, stderr=complaints,
                env=os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            yield Trial(_first(part), "failed", error.strerror, None)
            return
        is_late = False
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            is_late = True
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)  # one that hangs in the driver is left behind
        rows = list(_rows(output))
        last = _tail(complaints)
    yield from (_trial(row) for row in rows if row["outcome"] != "begun")
    if not rows and not is_late:
        yield Trial(_first(part), "died", last or f"status {process.returncode}", None)
    elif not rows or rows[-1]["outcome"] == "begun":
        step = rows[-1]["step"] if rows else _first(part)
        said = None if is_late else last or f"status {process.returncode}"
        yield Trial(step, "timed_out" if is_late else "died", said, timeout_s if is_late else None)


def _first(part: str) -> Step:
    return "acl" if part == "acl" else "torch" if part == "torch" else "mindspore"


def _rows(output: IO[bytes]) -> Iterator[dict[str, Any]]:
    """The child's own lines; libraries print others between them."""
    output.seek(0)
    for line in output.read(_MAX_BYTES).decode(errors="replace").splitlines():
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and row.get("step") in get_args(Step) and isinstance(row.get("outcome"), str):
                yield row


def _trial(row: dict[str, Any]) -> Trial:
    said = row.get("said")
    lines = str(said).splitlines() if said else []
    return Trial(row["step"], row["outcome"], lines[-1][:_MAX_SAID] if lines else None, row.get("seconds"))


def _tail(complaints: IO[bytes]) -> str | None:
    complaints.seek(0)
    lines = complaints.read(_MAX_BYTES).decode(errors="replace").strip().splitlines()
    return lines[-1][:_MAX_SAID] if lines else None
