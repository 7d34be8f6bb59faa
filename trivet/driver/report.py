"""The doctor's report as text: the verdict, what was read, what to do. It must make sense without colour."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from trivet.base.findings import Finding, failed_layer, verdict
from trivet.base.settings import Language
from trivet.driver.facts import HostFacts
from trivet.driver.phrases import say
from trivet.driver.summary import summary

_WIDTH = 110
_MAX_NAMED = 12  # of those that were not checked; of more, how many of each layer
_MAX_TOLD = 24
_WORST_FIRST = ("failed", "warning", "note")


def report(facts: HostFacts, findings: Sequence[Finding], language: Language = "en") -> str:
    """The whole report, each section headed by one line, without a trailing newline."""
    sections = [
        headline(findings, language),
        _section("Read", [f"  {name:<8} {text}" for name, text in summary(facts, language)], language),
        _section("To do", to_do(findings), language),
        _section("Left open", list(_open(findings, language)), language),
        _ruled_out(findings, language),
    ]
    return "\n\n".join(section for section in sections if section)


def headline(findings: Sequence[Finding], language: Language = "en") -> str:
    """The verdict in one line: the lowest layer that does not carry, and what the verdict must be read with."""
    names = {outcome: [each for each in findings if each.outcome == outcome] for outcome in _WORST_FIRST}
    num_unknown = sum(finding.outcome == "unknown" for finding in findings)
    layer = failed_layer(tuple(findings))
    values = {
        "layer": layer or "driver", "count": len(names["warning"]), "unknown": num_unknown,
        "names": ", ".join(each.name for each in names["failed"] if each.layer == layer),
    }  # fmt: skip
    head = {
        "failed": "The {layer} layer does not carry: {names}",
        "warning": "The host carries; warnings: {count}",
    }.get(verdict(tuple(findings)), "The host carries")
    tail = say(language, "; could not tell: {unknown} checks", values) if num_unknown else ""
    return say(language, head, values) + tail


def to_do(findings: Sequence[Finding]) -> list[str]:
    """What is wrong with what mends it: failures first, and of each kind the lowest layer first."""
    wrong = [each for outcome in _WORST_FIRST for each in findings if each.outcome == outcome]
    return [
        line for finding in wrong for line in (f"  {finding.line()}", *(f"      → {step}" for step in finding.remedy))
    ]


def _open(findings: Sequence[Finding], language: Language) -> Iterable[str]:
    """What is neither good nor bad: could not be told, or was not made, with its cause."""
    blocked, told = dict[str, list[Finding]](), dict[tuple[str, str], list[Finding]]()
    for finding in findings:
        if finding.because is not None:
            blocked.setdefault(finding.because, []).append(finding)
    # What was skipped for its own sake is told of where much hangs on it: that there is no NPU.
    skipped = [each for each in findings if each.outcome == "skipped" and each.because is None]
    few = {each.name for each in skipped if len(blocked.get(each.name, ())) <= _MAX_NAMED}
    not_asked = [each for each in findings if each.outcome == "skipped" and (each.because or each.name) in few]
    for finding in findings:
        if finding.outcome == "unknown" or (finding in skipped and finding.name not in few):
            told.setdefault((finding.outcome, finding.detail), []).append(finding)
    if len(told) > _MAX_TOLD:  # of a text that somebody pasted
        unknown = [each for each in findings if each.outcome == "unknown"]
        yield _listed("? " + say(language, "could not be read, or not told"), unknown)
        told = {key: those for key, those in told.items() if key[0] != "unknown"}
    for those in told.values():
        names = ", ".join(each.name for each in those)
        yield f"  {replace(those[0], name=names).line()}"
    for cause, those in blocked.items():
        if cause in few:
            continue
        yield _listed("- " + say(language, "not checked, because of {cause}", {"cause": cause}), those)
    if not_asked:
        nothing = "nothing to hold against (--model, --probe and --peer give more), or nothing of the kind here"
        yield _listed("- " + say(language, nothing), not_asked)


def _listed(text: str, those: Sequence[Finding]) -> str:
    """Their names, or of very many how many of each layer."""
    named = ", ".join(each.name for each in those)
    if len(those) > _MAX_NAMED:
        named = ", ".join(f"{layer} {count}" for layer, count in Counter(each.layer for each in those).items())
    return textwrap.fill(f"{text}: {named}", _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _ruled_out(findings: Sequence[Finding], language: Language) -> str:
    names = ", ".join(finding.name for finding in findings if finding.outcome == "passed")
    wrapped = textwrap.fill(names, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    return _section("Ruled out", [wrapped] if names else [], language)


def _section(name: str, lines: Sequence[str], language: Language) -> str:
    return "\n".join([say(language, name), *lines]) if lines else ""
