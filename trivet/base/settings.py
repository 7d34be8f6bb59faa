"""What the environment may set. Nothing else in the project reads `os.environ` for its own settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Language = Literal["en", "zh"]  # in which the doctor speaks


@dataclass(frozen=True)
class Settings:
    """Process-wide settings; what a command can set on its line is an option there, not a field here."""

    cache_dir: Path  # TRIVET_CACHE: converted packages, demo weights; else $XDG_CACHE_HOME/trivet or ~/.cache/trivet
    api_key: str | None  # TRIVET_API_KEY: asked of every request but /health, /ready and /metrics
    cpu_target: str | None  # TRIVET_CPU_TARGET: force one of the compiled kernel targets
    language: Language = "en"  # LC_ALL, LC_MESSAGES, LANG: the first that is set; zh… is Chinese, others English


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    cache = environ.get("TRIVET_CACHE")
    return Settings(
        cache_dir=Path(cache) if cache else _user_cache(environ) / "trivet",
        api_key=environ.get("TRIVET_API_KEY") or None,
        cpu_target=environ.get("TRIVET_CPU_TARGET") or None,
        language="zh" if _locale(environ).startswith("zh") else "en",
    )


def _user_cache(environ: Mapping[str, str]) -> Path:
    """Where this user's programs keep what can be made again. Source: the XDG Base Directory Specification 0.8."""
    named = Path(environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path(os.path.expanduser("~/.cache"))  # noqa: PTH111 - no error without a home


def _locale(environ: Mapping[str, str]) -> str:
    return environ.get("LC_ALL") or environ.get("LC_MESSAGES") or environ.get("LANG") or ""
