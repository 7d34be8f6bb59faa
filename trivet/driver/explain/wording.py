"""A verdict for people and for programs, in English or Chinese. Says that a cause is not known where none is named."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from trivet.base.settings import Language
from trivet.driver.explain.tables import Rule, Wording, meaning_of, reading
from trivet.driver.explain.verdict import Verdict

_WIDTH = 110
_MAX_SHOWN = 400  # characters of the first error
_SAID: dict[str, Wording] = {
    "layer": Wording("Layer", "层"),
    "cause": Wording("Cause", "原因"),
    "first_error": Wording("First error", "首个错误"),
    "codes": Wording("Codes", "错误码"),
    "fix": Wording("To do", "处理"),
    "next_evidence": Wording("Next evidence", "还需收集"),
    "sources": Wording("Sources", "来源"),
    "not_known": Wording("not known", "未知"),
    "nothing": Wording(
        "nothing in this text is in the tables, or it shows no error", "文本中没有表中已知的内容，或没有错误"
    ),
}  # fmt: skip
_CONFIDENCES = {
    "high": Wording("confidence high", "可信度高"),
    "medium": Wording("confidence medium", "可信度中"),
    "low": Wording("confidence low: one that fits, not one that is proved", "可信度低：相符，但未证实"),
}


def as_data(verdict: Verdict, language: Language) -> dict[str, object]:
    """The verdict under fixed keys; `cause` is None and `confidence` is "none" where no cause is known."""
    rule = verdict.rule
    is_known = rule is not None and verdict.confidence != "none"
    return {
        "layer": rule.layer if rule else "unknown",
        "cause": rule.wording.in_language(language) if rule and is_known else None,
        "confidence": verdict.confidence,
        "first_error": _first_error(verdict),
        "codes": list(verdict.codes),
        "fix": [each.in_language(language) for each in (rule.fix if rule else ())],
        "next_evidence": [each.in_language(language) for each in _next_evidence(rule)],
        "sources": _sources(verdict),
    }


def as_text(verdict: Verdict, language: Language) -> str:
    """The verdict as a short report, without a trailing newline."""
    data = as_data(verdict, language)
    known = {code: meaning for code in verdict.codes if (meaning := meaning_of(code))}
    meanings = [f"{code}  {each.meaning.in_language(language)}" for code, each in known.items()]
    layer, cause = (_SAID[name].in_language(language) for name in ("layer", "cause"))
    sections = [
        f"{layer}: {data['layer']}\n" + _wrapped(f"{cause}: {_cause(verdict, language)}"),
        _section("first_error", [str(data["first_error"])] if data["first_error"] else [], language),
        _section("codes", meanings, language),
        _section("fix", [f"→ {each}" for each in _listed(data["fix"])], language),
        _section("next_evidence", [f"→ {each}" for each in _listed(data["next_evidence"])], language),
        _section("sources", _listed(data["sources"]), language),
    ]
    return "\n\n".join(section for section in sections if section)


def _cause(verdict: Verdict, language: Language) -> str:
    if verdict.rule is None:
        return f"{_SAID['not_known'].in_language(language)}; {_SAID['nothing'].in_language(language)}"
    said = verdict.rule.wording.in_language(language)
    if verdict.confidence == "none":
        return f"{_SAID['not_known'].in_language(language)}. {said}"
    return f"{said} ({_CONFIDENCES[verdict.confidence].in_language(language)})"


def _first_error(verdict: Verdict) -> str | None:
    if verdict.first_error is None:
        return None
    text = verdict.first_error.text
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def _next_evidence(rule: Rule | None) -> tuple[Wording, ...]:
    return rule.next_evidence if rule else (reading().when_unknown,)


def _sources(verdict: Verdict) -> list[str]:
    """Of the rule, then of the codes, each once."""
    meanings = (meaning_of(code) for code in verdict.codes)
    of_codes = [each.source for each in meanings if each is not None]
    return list(dict.fromkeys((*(verdict.rule.sources if verdict.rule else ()), *of_codes)))


def _section(name: str, lines: Iterable[str], language: Language) -> str:
    wrapped = [_wrapped(line, "  ", "    ") for line in lines]
    return "\n".join([_SAID[name].in_language(language), *wrapped]) if wrapped else ""


def _wrapped(text: str, first: str = "", rest: str = "  ") -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _listed(value: object) -> list[str]:
    assert isinstance(value, list)
    return value
