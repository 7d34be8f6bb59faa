"""The compiler's last stage before it turns operations into calls: local addresses, flags and barriers are final."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ascend.hivm.program import Program, parse
from ascend.lower.stages import Lowered, compile_for
from ascend.lower.toolchain import LoweringError

_STAGE = "hivm-insert-free-lock-var-before-return"


def schedule(lowered: Lowered, soc: str, what: str) -> Program:
    """The kernel as scheduled for `soc`, compiled as `ascend.lower.stages.plan_memory` does.

    Raises LoweringError naming `what` when the compiler refuses it, HivmError when its text is not understood.
    """
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder) / "printed"
        more = ("--mlir-print-op-generic", f"--mlir-print-ir-after={_STAGE}", f"--mlir-print-ir-tree-dir={printed}")
        done = compile_for(lowered, soc, Path(folder), *more)
        stages = sorted(printed.rglob(f"*_{_STAGE}.mlir"))
        if done.returncode != 0 or not stages:
            raise LoweringError(f"{what}: {soc} is refused: {(done.stdout + done.stderr).strip()[-400:]}")
        return parse(stages[-1].read_text(), lowered.name)
