"""The verdict on a text: the first error, and what the tables say of it. Where they name no cause, none is named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from trivet.driver.explain.lines import Line, lines_of
from trivet.driver.explain.patterns import Pattern
from trivet.driver.explain.tables import CONFIDENCES, Confidence, Rule, reading, rules

# One incident: what is said within this of its first line belongs to it, and may say why.
_INCIDENT_LINES = 80
_INCIDENT_S = 60.0
_MAX_CODES = 32


@dataclass(frozen=True)
class Verdict:
    rule: Rule | None  # None: the tables know nothing of this text
    confidence: Confidence
    first_error: Line | None
    codes: tuple[str, ...]  # in the order in which they happened


@dataclass(frozen=True)
class _Match:
    rule: Rule
    rank: int  # of the rule in its tables
    index: int  # of the line that is blamed, in the order in which things happened


def explain(text: str) -> Verdict:
    """What happened first in a text of at most `pasted.MAX_BYTES`, and why, as far as the tables know."""
    lines = lines_of(text)
    searched = _Searched(lines)
    matches = list(searched.matches())
    blamed = [match for match in matches if not searched.is_set_aside(match.index)] or matches
    codes = tuple(dict.fromkeys(code for line in lines for code in line.codes))[:_MAX_CODES]
    if not blamed:
        return Verdict(None, "none", searched.first_error(), codes)
    begin = min(match.index for match in blamed)
    chosen = min((match for match in blamed if _is_one_incident(lines, begin, match.index)), key=_preference)
    confidence = chosen.rule.confidence
    if confidence == "high" and searched.has_error_before(begin):
        confidence = "medium"  # what was said before it, the tables do not know
    return Verdict(chosen.rule, confidence, lines[chosen.index], codes)


def _preference(match: _Match) -> tuple[int, int, int]:
    """Within one incident: what says why before what only says that, then the earlier, then the tables' order."""
    return CONFIDENCES.index(match.rule.confidence), match.index, match.rank


def _is_one_incident(lines: Sequence[Line], begin: int, index: int) -> bool:
    first, other = lines[begin].second, lines[index].second
    is_near = first is None or other is None or other - first <= _INCIDENT_S
    return index - begin <= _INCIDENT_LINES and is_near


class _Searched:
    """A text's lines with what has been looked for in them, so that no pattern is looked for twice."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines
        self._text = "\n".join(line.message for line in lines)
        self._codes = {code for line in lines for code in line.codes}
        self.find = cache(self._find)

    def matches(self) -> Iterable[_Match]:
        for rank, rule in enumerate(rules()):
            if any(self.find(pattern) is not None for pattern in rule.unless):
                continue
            found = [index for each in rule.alternatives if (index := self._first(each)) is not None]
            if found:
                # A line that is set aside counts only where the rule finds no other.
                yield _Match(rule, rank, min(found, key=lambda index: (self.is_set_aside(index), index)))

    def _first(self, alternative: tuple[Pattern, ...]) -> int | None:
        found = [self.find(pattern) for pattern in alternative]
        return None if None in found else found[0]

    def _find(self, pattern: Pattern) -> int | None:
        """The first line with the pattern, one that is not set aside where there is one."""
        if not pattern.may_be_in(self._text, self._codes):
            return None
        aside = None
        for index, line in enumerate(self._lines):
            if pattern.finds(line) and not _is_any(reading().noise, line):
                if not self.is_set_aside(index):
                    return index
                aside = index if aside is None else aside
        return aside

    def is_set_aside(self, index: int) -> bool:
        """Whether a line follows another error, mostly: it is blamed only where nothing else is."""
        return _is_any(reading().follow_ups, self._lines[index])

    def has_error_before(self, end: int) -> bool:
        return any(self._is_error(index) for index in range(end))

    def first_error(self) -> Line | None:
        """The first line that looks like an error; a follow-up where there is nothing else."""
        for is_wanted in (self._is_error, self.is_set_aside):
            found = next((line for index, line in enumerate(self._lines) if is_wanted(index)), None)
            if found is not None:
                return found
        return None

    def _is_error(self, index: int) -> bool:
        line = self._lines[index]
        return _is_any(reading().errors, line) and not _is_any((*reading().noise, *reading().follow_ups), line)


def _is_any(patterns: tuple[Pattern, ...], line: Line) -> bool:
    return any(pattern.finds(line) for pattern in patterns)
