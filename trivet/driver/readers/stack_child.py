"""Tries one part of the stack, in a process of its own: `PYTHON stack_child.py acl|torch|mindspore`.

It is run by the interpreter that serves, which need not have Trivet: it stands alone. Each step is told in a line of
JSON as soon as it is over, so that whoever started it knows what a crash or a hang came after. It computes on every
NPU it sees, allocates next to nothing, and changes nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import time
from collections.abc import Callable
from typing import Any

_HBM = 1  # ACL_HBM_MEM of aclrtGetMemInfo
_SIDE = 16


def _tell(step: str, outcome: str, said: str | None, start: float) -> None:
    row = {"step": step, "outcome": outcome, "said": said, "seconds": time.monotonic() - start}
    print(json.dumps(row), flush=True)


def _try(step: str, work: Callable[[], str]) -> bool:
    start = time.monotonic()
    _tell(step, "begun", None, start)
    try:
        said = work()
    except ModuleNotFoundError as error:
        _tell(step, "absent" if error.name == step else "failed", str(error), start)
    except BaseException as error:  # SystemExit too: a library of the stack has been seen to exit
        _tell(step, "failed", f"{type(error).__name__}: {error}", start)
    else:
        _tell(step, "done", said, start)
        return True
    return False


def _acl() -> None:
    acl: Any = None
    count = 0

    def begin() -> str:
        nonlocal acl
        acl = importlib.import_module("acl")
        _expect("acl.init", acl.init())
        return ""

    def devices() -> str:
        nonlocal count
        count, code = acl.rt.get_device_count()
        _expect("acl.rt.get_device_count", code)
        return str(count)

    def device() -> str:
        free = []
        for number in range(count):
            _expect(f"acl.rt.set_device({number})", acl.rt.set_device(number))
            left, _, code = acl.rt.get_mem_info(_HBM)
            _expect(f"acl.rt.get_mem_info of device {number}", code)
            free.append(str(left))
        return " ".join(free)

    steps = (("acl", begin), ("device count", devices), ("device", device), ("soc name", lambda: acl.get_soc_name()))
    for step, work in steps:
        if not _try(step, work):
            return


def _expect(call: str, code: int) -> None:
    if code != 0:
        raise RuntimeError(f"{call} returned {code}")


def _torch() -> None:
    torch: Any = None

    def load(name: str) -> str:
        nonlocal torch
        module = importlib.import_module(name)
        torch = module if name == "torch" else torch
        return str(getattr(module, "__version__", ""))

    def devices() -> str:
        if not torch.npu.is_available():
            raise RuntimeError("torch.npu.is_available() is False")
        return str(torch.npu.device_count())

    def arithmetic() -> str:
        # Whole numbers below 2048 are exact in float16, whatever the order of the sums.
        values = torch.arange(_SIDE * _SIDE).reshape(_SIDE, _SIDE).remainder(7).to(torch.float16)
        product = (values.float() @ values.float()).half()
        for number in range(torch.npu.device_count()):
            own = values.to(f"npu:{number}")
            if not torch.equal((own + own).cpu(), values + values):
                raise RuntimeError(f"device {number} adds wrongly")
            if not torch.equal((own @ own).cpu(), product):
                raise RuntimeError(f"device {number} multiplies matrices wrongly")
        return str(torch.npu.device_count())

    steps = (("torch", lambda: load("torch")), ("torch_npu", lambda: load("torch_npu")), ("torch devices", devices),
             ("arithmetic", arithmetic))  # fmt: skip
    for step, work in steps:
        if not _try(step, work):
            return


def _mindspore() -> None:
    def check() -> str:
        mindspore: Any = importlib.import_module("mindspore")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            mindspore.run_check()
        said = printed.getvalue().strip()
        if "[ERROR]" in said or "successfully" not in said:
            raise RuntimeError(said[-500:] or "mindspore.run_check() printed nothing")
        return str(mindspore.__version__)

    _try("mindspore", check)


if __name__ == "__main__":
    {"acl": _acl, "torch": _torch, "mindspore": _mindspore}[sys.argv[1]]()
