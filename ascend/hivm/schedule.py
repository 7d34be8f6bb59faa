"""The compiler's last stage before it turns operations into calls: local addresses, flags and barriers are final."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ascend.hivm.program import Program, parse
from ascend.lower.stages import Lowered, without_mix_mode
from ascend.lower.toolchain import LoweringError, bishengir, run

_STAGE = "hivm-insert-free-lock-var-before-return"


def schedule(lowered: Lowered, soc: str, what: str) -> Program:
    """The kernel as scheduled for `soc`, with the options of `ascend.lower.stages.plan_memory`.

    Raises LoweringError naming `what` when the compiler refuses it, HivmError when its text is not understood.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, printed = Path(folder) / "kernel.mlir", Path(folder) / "printed"
        source.write_text(without_mix_mode(lowered.linalg))
        command = (
            bishengir("bishengir-compile"), source, f"--target={soc}",
            "--enable-auto-multi-buffer=true", "--enable-auto-bind-sub-block=true",
            "--enable-hfusion-compile=true", "--enable-hivm-compile=true", "--enable-triton-kernel-compile=true",
            "--mlir-print-op-generic", f"--mlir-print-ir-after={_STAGE}", f"--mlir-print-ir-tree-dir={printed}",
            "-o", Path(folder) / "kernel",
        )  # fmt: skip
        done = run(command, {"HIVMC_KEEPS": folder})
        stages = sorted(printed.rglob(f"*_{_STAGE}.mlir"))
        if done.returncode != 0 or not stages:
            raise LoweringError(f"{what}: {soc} is refused: {(done.stdout + done.stderr).strip()[-400:]}")
        return parse(stages[-1].read_text(), lowered.name)
