"""Runs a command over the fake CANN: python -m ascend.fakecann.run COMMAND…

Settings, read by the fake itself: FAKECANN_DEVICES (2), FAKECANN_DEVICE_BYTES (64 GiB), FAKECANN_SOC (Ascend910B3).
"""

from __future__ import annotations

import os
import sys

from ascend.fakecann.build import build


def environment(libraries: str) -> dict[str, str]:
    """What the command's process needs, over the present environment."""
    # torch would import torch_npu by itself, before a program can say whether it wants it.
    return {**os.environ, "LD_LIBRARY_PATH": libraries, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "FAKECANN": libraries}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m ascend.fakecann.run COMMAND…")
    os.execvpe(sys.argv[1], sys.argv[1:], environment(str(build())))
