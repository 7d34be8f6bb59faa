"""What a check is, and how checks are run: in strict order, each only when what it rests on has held.

A check is a pure function of the facts and the need. It is named for what is wrong when it fails. What it could not
find out is unknown, and unknown is not passed: a check that needs it is not made. One that blocks its layer blocks all
layers above as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trivet.base.findings import Finding, Layer, Outcome
from trivet.base.settings import Language
from trivet.driver.facts import HostFacts
from trivet.driver.need import Need
from trivet.driver.phrases import say

# The worst that a check may say. "block": nothing above its layer can work, so nothing above is looked at.
Severity = Literal["block", "error", "warning", "note"]
# From the lowest. The host's own settings are beside them: they block nothing and are blocked by nothing.
LAYERS: tuple[Layer, ...] = ("user-config", "driver", "operator", "framework", "model", "network")


@dataclass(frozen=True)
class Judgement:
    """Phrases and the values that go into them: see `phrases`."""

    outcome: Outcome
    detail: str  # what was read, in one sentence without a full stop
    remedy: tuple[str, ...] = ()
    values: dict[str, object] = field(default_factory=dict)


Judge = Callable[[HostFacts, Need], Judgement]


@dataclass(frozen=True)
class Check:
    code: str  # "DRV007": never given to another check
    name: str
    layer: Layer
    severity: Severity
    needs: tuple[str, ...]  # names of earlier checks that must have passed
    source: str  # where the constant or the rule comes from
    judge: Judge


def check(
    code: str, severity: Severity, *, layer: Layer = "driver", source: str, needs: tuple[str, ...] = ()
) -> Callable[[Judge], Check]:
    """Makes a check of a function, named as the function is."""

    def make(judge: Judge) -> Check:
        return Check(code, judge.__name__, layer, severity, needs, source, judge)

    return make


def passed(detail: str, **values: object) -> Judgement:
    return Judgement("passed", detail, (), values)


def note(detail: str, *remedy: str, **values: object) -> Judgement:
    return Judgement("note", detail, remedy, values)


def warning(detail: str, *remedy: str, **values: object) -> Judgement:
    return Judgement("warning", detail, remedy, values)


def failed(detail: str, *remedy: str, **values: object) -> Judgement:
    return Judgement("failed", detail, remedy, values)


def unknown(detail: str, **values: object) -> Judgement:
    return Judgement("unknown", detail, (), values)


def unread(what: str) -> Judgement:
    """`what` could not be read."""
    return unknown("{what} could not be read", what=what)


def not_asked(detail: str, **values: object) -> Judgement:
    """There is nothing to hold the facts against; the detail says what would be."""
    return Judgement("skipped", detail, (), values)


def run(checks: Sequence[Check], facts: HostFacts, need: Need, language: Language = "en") -> tuple[Finding, ...]:
    """One finding for each check, in their order."""
    findings: dict[str, Finding] = {}
    blocking: Finding | None = None
    for each in checks:
        assert set(each.needs) <= findings.keys(), f"{each.name} needs checks that come after it"
        missing = next(
            (findings[name] for name in each.needs if findings[name].outcome not in ("passed", "note")), None
        )
        cause = missing or (blocking if _is_above(each, blocking) else None)
        found = _because(each, cause, language) if cause else _made(each, facts, need, language)
        if found.outcome == "failed" and each.severity == "block" and blocking is None:
            blocking = found
        findings[each.name] = found
    return tuple(findings.values())


def _is_above(each: Check, blocking: Finding | None) -> bool:
    if blocking is None or blocking.layer is None or each.layer == "user-config":
        return False
    return LAYERS.index(each.layer) > LAYERS.index(blocking.layer)


def _made(each: Check, facts: HostFacts, need: Need, language: Language) -> Finding:
    verdict = each.judge(facts, need)
    is_spare = need.device == "cpu" and each.layer != "user-config"  # of a device that was not asked for
    outcome = "warning" if verdict.outcome == "failed" and is_spare else verdict.outcome
    said = [say(language, phrase, verdict.values) for phrase in (verdict.detail, *verdict.remedy)]
    return Finding("driver", each.name, outcome, said[0], tuple(said[1:]), each.layer)


def _because(each: Check, blocking: Finding, language: Language) -> Finding:
    """The first cause is named, not the last link of the chain."""
    cause = blocking.because or blocking.name
    detail = say(language, "not checked, because of {cause}", {"cause": cause})
    return Finding("driver", each.name, "skipped", detail, (), each.layer, cause)
