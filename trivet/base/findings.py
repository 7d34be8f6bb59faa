"""A finding: what a check of any leg concluded, as data and as a line of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Leg = Literal["driver", "operators", "framework"]
Outcome = Literal["passed", "warning", "failed", "unknown", "skipped"]

_MARKS: dict[Outcome, str] = {"passed": "✓", "warning": "!", "failed": "✗", "unknown": "?", "skipped": "-"}


@dataclass(frozen=True)
class Finding:
    """One conclusion. `unknown` means the fact could not be read, which is not the same as passed."""

    leg: Leg
    name: str
    outcome: Outcome
    detail: str  # what was read, in one sentence without a full stop
    remedy: tuple[str, ...] = ()  # commands or settings that mend it, in order

    def line(self) -> str:
        return f"{_MARKS[self.outcome]} {self.name}: {self.detail}"


def verdict(findings: tuple[Finding, ...]) -> Outcome:
    """The worst outcome that decides: a leg carries weight unless something failed."""
    for outcome in ("failed", "warning"):
        if any(finding.outcome == outcome for finding in findings):
            return outcome
    return "passed"
