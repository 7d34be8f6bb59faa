"""The doctor's findings for other programs and pages: JUnit XML for a pipeline, Markdown for an issue or a wiki."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from trivet.base.findings import Finding
from trivet.base.settings import Language
from trivet.driver.check import Check
from trivet.driver.facts import HostFacts
from trivet.driver.phrases import say
from trivet.driver.report import headline
from trivet.driver.summary import summary

_SHOWN = ("failed", "warning", "note", "unknown")
# What XML 1.0 does not allow: control characters that a log line may hold.
_NOT_IN_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def junit(checks: Sequence[Check], findings: Sequence[Finding]) -> str:
    """A test suite for each layer, a test case for each check; a warning passes, and what is unknown was skipped."""
    root = ElementTree.Element("testsuites", name="trivet doctor")
    layers = dict.fromkeys(check.layer for check in checks)
    for layer in layers:
        pairs = [pair for pair in zip(checks, findings, strict=True) if pair[0].layer == layer]
        suite = ElementTree.SubElement(
            root, "testsuite", name=layer, tests=str(len(pairs)),
            failures=str(sum(finding.outcome == "failed" for _, finding in pairs)),
            skipped=str(sum(finding.outcome in ("unknown", "skipped") for _, finding in pairs)),
        )  # fmt: skip
        for check, finding in pairs:
            _case(suite, check, finding)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _case(suite: ElementTree.Element, check: Check, finding: Finding) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=f"{check.layer}.{check.code}", name=check.name)
    detail = _NOT_IN_XML.sub("?", finding.detail)
    remedy = _NOT_IN_XML.sub("?", "\n".join(finding.remedy))
    match finding.outcome:
        case "failed":
            ElementTree.SubElement(case, "failure", message=detail).text = remedy
        case "unknown" | "skipped":
            ElementTree.SubElement(case, "skipped", message=detail)
        case _:
            ElementTree.SubElement(case, "system-out").text = "\n".join(filter(None, (detail, remedy)))


def markdown(facts: HostFacts, findings: Sequence[Finding], language: Language = "en") -> str:
    """The verdict, what is wrong with what mends it, and what was read, in a fold."""
    rows = [
        " | ".join(
            (
                f"| {say(language, finding.outcome)}",
                str(finding.layer),
                f"`{finding.name}`",
                _cell(finding.detail),
                f"{_steps(finding)} |",
            )
        )
        for outcome in _SHOWN
        for finding in findings
        if finding.outcome == outcome
    ]
    read = [f"{name:<8} {text}" for name, text in summary(facts, language)]
    header = ["|  |  |  |  |  |", "| --- | --- | --- | --- | --- |"] if rows else []
    fold = ["<details><summary>" + say(language, "Read") + "</summary>", "", "```text", *read, "```", "", "</details>"]
    return "\n".join([f"**{headline(findings, language)}**", "", *header, *rows, "", *fold])


def _steps(finding: Finding) -> str:
    return "<br>".join(f"`{_cell(step)}`" for step in finding.remedy)


def _cell(text: str) -> str:
    """A bar or a line's end would end the cell, and a name in angle brackets would be taken for a tag."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").replace("`", "'").split())
