"""What is known of errors, as data: causes, symptoms, codes, and how to read a text. Refuses to load a table at fault.

A *cause* says why; a *symptom* says which layer reports and what to collect next, because the text does not say why. A
*family* is the layer that a code or a module of CANN belongs to, for what no rule knows.
"""

from __future__ import annotations

import csv
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from trivet.base.settings import Language
from trivet.driver.explain.patterns import Pattern, pattern_of

Layer = Literal["driver", "operator", "framework", "model", "user-config", "network", "unknown"]
Confidence = Literal["high", "medium", "low", "none"]  # of the cause: none is named, and the confidence is "none"

# The layer is the name of the table's file. In the order in which they are asked where two say the same of one line.
LAYERS: tuple[Layer, ...] = ("driver", "operator", "framework", "model", "user-config", "network")
CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low", "none")


@dataclass(frozen=True)
class Wording:
    """One sentence or command in both languages; a command is the same in both."""

    en: str
    zh: str

    def in_language(self, language: Language) -> str:
        return self.zh if language == "zh" else self.en


@dataclass(frozen=True)
class Rule:
    """A cause or a symptom: it applies where every pattern of one alternative is found, and none of `unless`."""

    id: str
    layer: Layer
    confidence: Confidence  # "none" for a symptom and a family
    is_family: bool  # asked only where no other rule applies
    alternatives: tuple[tuple[Pattern, ...], ...]  # the first pattern of each marks the line that is blamed
    unless: tuple[Pattern, ...]
    wording: Wording  # a cause's sentence; of a symptom, what is seen
    fix: tuple[Wording, ...]
    next_evidence: tuple[Wording, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """An error code, or the beginning of a family of them, such as EZ."""

    code: str
    meaning: Wording
    source: str


@dataclass(frozen=True)
class Reading:
    """Which lines are errors at all, which are never blamed, and which only follow another error."""

    follow_ups: tuple[Pattern, ...]
    noise: tuple[Pattern, ...]
    errors: tuple[Pattern, ...]
    when_unknown: Wording  # what to collect where the tables know nothing


@cache
def rules() -> tuple[Rule, ...]:
    """All causes and symptoms, in the order of `LAYERS` and of their files."""
    common = _toml("reading")
    return tuple(
        _rule(layer, kind, row, common)
        for layer in LAYERS
        for kind, rows in _toml(layer).items()
        for row in rows
    )  # fmt: skip


@cache
def codes() -> dict[str, Code]:
    urls = _toml("reading")["sources"]
    text = (files("trivet.driver.explain") / "data" / "codes.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {
        row["code"]: Code(row["code"], Wording(row["meaning"], row["meaning_zh"]), urls[row["source"]]) for row in rows
    }


@cache
def reading() -> Reading:
    common = _toml("reading")
    follow_ups, noise, errors = (tuple(map(pattern_of, common[name])) for name in ("follow_ups", "noise", "errors"))
    return Reading(follow_ups, noise, errors, _wording(common["next_evidence"]["whole_log"]))


def meaning_of(code: str) -> Code | None:
    """The code's own row, or that of the longest family it belongs to; a number belongs to no family."""
    known = codes()
    if not code.startswith(("E", "M")):
        return known.get(code)
    return next((known[code[:length]] for length in range(len(code), 1, -1) if code[:length] in known), None)


@cache
def _toml(name: str) -> dict[str, Any]:
    text = (files("trivet.driver.explain") / "data" / f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _rule(layer: Layer, kind: str, row: dict[str, Any], common: dict[str, Any]) -> Rule:
    wanted = {"id", "when", "en", "zh", *({"confidence", "sources"} if kind == "cause" else {"next"})}
    assert wanted <= row.keys() <= wanted | {"unless", "fix", "next"}, f"{layer}.toml: {row.get('id')} has other keys"
    return Rule(
        id=row["id"],
        layer=layer,
        confidence=row.get("confidence", "none"),
        is_family=kind == "family",
        alternatives=tuple(_alternative(each) for each in row["when"]),
        unless=tuple(pattern_of(each) for each in row.get("unless", ())),
        wording=Wording(row["en"], row["zh"]),
        fix=tuple(_wording(each) for each in row.get("fix", ())),
        next_evidence=tuple(_wording(common["next_evidence"][name]) for name in row.get("next", ())),
        sources=tuple(common["sources"][name] for name in row.get("sources", ())),
    )


def _alternative(each: str | list[str]) -> tuple[Pattern, ...]:
    return tuple(pattern_of(text) for text in ([each] if isinstance(each, str) else each))


def _wording(each: str | list[str]) -> Wording:
    return Wording(each, each) if isinstance(each, str) else Wording(*each)
