"""A finding: what a check of any leg concluded, as data and as a line of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Leg = Literal["driver", "operators", "framework"]
# Where to look. The words mean what they mean in `trivet doctor --explain`.
Layer = Literal["user-config", "driver", "operator", "framework", "model", "network"]
# A note is worth a word and no warning: it works as it is.
Outcome = Literal["passed", "note", "warning", "failed", "unknown", "skipped"]

# Of `trivet doctor`: that of the lowest layer at which something failed.
EXIT_STATUS: dict[Layer, int] = {
    "driver": 2, "operator": 3, "framework": 4, "model": 5, "user-config": 6, "network": 7,
}  # fmt: skip

_MARKS: dict[Outcome, str] = {"passed": "✓", "note": "i", "warning": "!", "failed": "✗", "unknown": "?", "skipped": "-"}


@dataclass(frozen=True)
class Finding:
    """One conclusion. `unknown` means the fact could not be read, which is not the same as passed."""

    leg: Leg
    name: str
    outcome: Outcome
    detail: str  # what was read, in one sentence without a full stop
    remedy: tuple[str, ...] = ()  # commands or settings that mend it, in order
    layer: Layer | None = None  # None where the leg says it all
    because: str | None = None  # the check for whose sake this one was not made

    def line(self) -> str:
        return f"{_MARKS[self.outcome]} {self.name}: {self.detail}"


def verdict(findings: tuple[Finding, ...]) -> Outcome:
    """The worst outcome that decides: a leg carries weight unless something failed."""
    for outcome in ("failed", "warning"):
        if any(finding.outcome == outcome for finding in findings):
            return outcome
    return "passed"


def failed_layer(findings: tuple[Finding, ...]) -> Layer | None:
    """The layer of the first failure, which is the lowest: checks are made in that order."""
    return next((finding.layer for finding in findings if finding.outcome == "failed"), None)
