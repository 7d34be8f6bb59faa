"""Trivet: LLM inference on three legs, the driver, the operators and the framework."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trivet.framework.engine.llm import LLM
    from trivet.framework.engine.params import SamplingParams
    from trivet.framework.engine.worker import AsyncEngine

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncEngine", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "trivet.framework.engine.llm",
    "AsyncEngine": "trivet.framework.engine.worker",
    "SamplingParams": "trivet.framework.engine.params",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `import trivet` and `trivet --help` stay instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'trivet' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
