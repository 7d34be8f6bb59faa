"""What a check is, and how checks are run: in strict order, each only when what it rests on has held.

A check is a pure function of the facts and the need. It is named for what is wrong when it fails. What it could not
find out is unknown, and unknown is not passed: a check that needs it is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trivet.base.findings import Finding, Outcome
from trivet.driver.facts import HostFacts
from trivet.driver.need import Need


@dataclass(frozen=True)
class Judgement:
    outcome: Outcome
    detail: str  # what was read, in one sentence without a full stop
    remedy: tuple[str, ...] = ()


Judge = Callable[[HostFacts, Need], Judgement]


@dataclass(frozen=True)
class Check:
    code: str  # "DRV007": never given to another check
    name: str
    needs: tuple[str, ...]  # names of earlier checks that must have passed
    source: str  # where the constant or the rule comes from
    judge: Judge


def check(code: str, *, source: str, needs: tuple[str, ...] = ()) -> Callable[[Judge], Check]:
    """Makes a check of a function, named as the function is."""

    def make(judge: Judge) -> Check:
        return Check(code, judge.__name__, needs, source, judge)

    return make


def passed(detail: str) -> Judgement:
    return Judgement("passed", detail)


def warning(detail: str, *remedy: str) -> Judgement:
    return Judgement("warning", detail, remedy)


def failed(detail: str, *remedy: str) -> Judgement:
    return Judgement("failed", detail, remedy)


def unknown(detail: str) -> Judgement:
    return Judgement("unknown", detail)


def not_asked(detail: str) -> Judgement:
    """There is nothing to hold the facts against; the detail says what would be."""
    return Judgement("skipped", detail)


def run(checks: Sequence[Check], facts: HostFacts, need: Need) -> tuple[Finding, ...]:
    """One finding for each check, in their order."""
    findings: dict[str, Finding] = {}
    for each in checks:
        assert set(each.needs) <= findings.keys(), f"{each.name} needs checks that come after it"
        blocking = next((name for name in each.needs if findings[name].outcome != "passed"), None)
        verdict = each.judge(facts, need) if blocking is None else _because(findings[blocking])
        findings[each.name] = Finding("driver", each.name, verdict.outcome, verdict.detail, verdict.remedy)
    return tuple(findings.values())


def not_checked_because(finding: Finding) -> str | None:
    """The name of the check for whose sake this one was not made; None if it was made."""
    is_blocked = finding.outcome == "skipped" and finding.detail.startswith(_BECAUSE)
    return finding.detail.removeprefix(_BECAUSE) if is_blocked else None


_BECAUSE = "not checked, because of "


def _because(blocking: Finding) -> Judgement:
    """The first cause is named, not the last link of the chain."""
    return Judgement("skipped", _BECAUSE + (not_checked_because(blocking) or blocking.name))
