"""The verdict on a text: the first error, and what the tables say of it. Where they name no cause, none is named."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, islice
from typing import Literal

from trivet.driver.explain.lines import Line, lines_of
from trivet.driver.explain.patterns import Pattern
from trivet.driver.explain.tables import CONFIDENCES, Confidence, Rule, reading, rules

# One incident: what is said within this of its first line belongs to it, and may say why.
_INCIDENT_LINES = 80
_INCIDENT_S = 60.0
_MAX_CODES = 32
_MAX_FOUND = 1000  # lines of one pattern


@dataclass(frozen=True)
class Verdict:
    rule: Rule | None  # None: the tables know nothing of this text
    confidence: Confidence
    first_error: Line | None
    codes: tuple[str, ...]  # in the order in which they happened


# How much a line is an error's: one that looks like it, any other, one that follows an error or is routine.
_Standing = Literal[0, 1, 2]


@dataclass(frozen=True)
class _Match:
    rule: Rule
    rank: int  # of the rule in its tables
    index: int  # of the line that is blamed, in the order in which things happened
    standing: _Standing


def explain(text: str) -> Verdict:
    """What happened first in a text of at most `pasted.MAX_BYTES`, and why, as far as the tables know."""
    lines = lines_of(text)
    searched = _Searched(lines)
    matches = _but_families(list(searched.matches()))
    codes = tuple(dict.fromkeys(code for line in lines for code in line.codes))[:_MAX_CODES]
    if not matches:
        return Verdict(None, "none", searched.first_error(), codes)
    best = min(match.standing for match in matches)
    begin = min(match.index for match in matches if match.standing == best)
    near = [match for match in matches if match.standing < 2 or best == 2]
    chosen = min((match for match in near if _is_one_incident(lines, begin, match.index)), key=_preference)
    confidence = chosen.rule.confidence
    if confidence == "high" and searched.has_error_before(begin):
        confidence = "medium"  # what was said before it, the tables do not know
    return Verdict(chosen.rule, confidence, lines[chosen.index], codes)


def _but_families(matches: list[_Match]) -> list[_Match]:
    """What is known by its family alone counts where nothing else is known, or only what follows another error."""
    known = [match for match in matches if not match.rule.is_family]
    families = [match for match in matches if match.rule.is_family and match.standing < 2]
    return known if any(match.standing < 2 for match in known) or not families else families


def _preference(match: _Match) -> tuple[int, int, int, int, int]:
    """Within one incident: a cause that is sure, what an error's line says, another cause, the earlier, the tables."""
    doubt = CONFIDENCES.index(match.rule.confidence)
    return min(doubt, CONFIDENCES.index("low")), match.standing, doubt, match.index, match.rank


def _is_one_incident(lines: Sequence[Line], begin: int, index: int) -> bool:
    first, other = lines[begin].second, lines[index].second
    is_near = first is None or other is None or abs(other - first) <= _INCIDENT_S
    return abs(index - begin) <= _INCIDENT_LINES and is_near


class _Searched:
    """A text's lines, and what the rules find in them."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines
        self._text = "\n".join(line.message for line in lines)
        self._starts = [0, *accumulate(len(line.message) + 1 for line in lines[:-1])]  # of each line in the text
        self._codes: dict[str, list[int]] = {}  # code → lines
        for index, line in enumerate(lines):
            for code in line.codes:
                self._codes.setdefault(code, []).append(index)
        # Nothing is asked of a line twice.
        self._find = cache(self._find_all)
        self._is_error = cache(self._looks_like_an_error)
        self._is_follow_up = cache(self._is_among_follow_ups)
        self._is_noise = cache(self._is_among_noise)

    def matches(self) -> Iterator[_Match]:
        for rank, rule in enumerate(rules()):
            if any(self._find(pattern) for pattern in rule.unless):
                continue
            indices = [index for each in rule.alternatives for index in self._blamed_by(each)]
            if indices:
                # A rule is about its best line: an error's before another, then the earlier.
                standing, index = min((self._standing(index, rule), index) for index in indices)
                yield _Match(rule, rank, index, standing)

    def _blamed_by(self, alternative: tuple[Pattern, ...]) -> list[int]:
        return self._find(alternative[0]) if all(self._find(pattern) for pattern in alternative[1:]) else []

    def _find_all(self, pattern: Pattern) -> list[int]:
        """The lines with the pattern that are not noise, in order; of very many, the first."""
        found = (index for index in self._candidates(pattern) if pattern.finds(self._lines[index]))
        return list(islice((index for index in found if not self._is_noise(index)), _MAX_FOUND))

    def _candidates(self, pattern: Pattern) -> Iterator[int]:
        """Where a pattern can be: the rarest work is done in the whole text at once, not line by line."""
        if pattern.code is not None:
            codes = [code for code in self._codes if code.startswith(pattern.code)]
            yield from sorted({index for code in codes for index in self._codes[code]})
            return
        if not all(piece in self._text for piece in pattern.pieces):
            return
        place = self._text.find(pattern.pieces[0])
        while place >= 0:
            index = bisect_right(self._starts, place) - 1
            yield index
            if index + 1 == len(self._starts):
                return
            place = self._text.find(pattern.pieces[0], self._starts[index + 1])

    def _standing(self, index: int, rule: Rule) -> _Standing:
        """Of a routine line only a rule that is sure takes notice: `Available KV cache memory: -0.87 GiB`."""
        is_guess = rule.confidence in ("low", "none")
        if self._is_follow_up(index) or (is_guess and self._lines[index].is_routine):
            return 2
        return 0 if self._is_error(index) else 1

    def has_error_before(self, end: int) -> bool:
        return any(self._is_error(index) for index in range(end))

    def first_error(self) -> Line | None:
        """The first line that looks like an error; a follow-up where there is nothing else."""
        for is_wanted in (self._is_error, self._is_follow_up):
            found = next((line for index, line in enumerate(self._lines) if is_wanted(index)), None)
            if found is not None:
                return found
        return None

    def _looks_like_an_error(self, index: int) -> bool:
        line = self._lines[index]
        if line.is_routine:
            return False
        is_named = bool(line.codes) or _is_any(reading().errors, line)
        return is_named and not self._is_noise(index) and not self._is_follow_up(index)

    def _is_among_follow_ups(self, index: int) -> bool:
        return _is_any(reading().follow_ups, self._lines[index])

    def _is_among_noise(self, index: int) -> bool:
        return _is_any(reading().noise, self._lines[index])


def _is_any(patterns: tuple[Pattern, ...], line: Line) -> bool:
    return any(pattern.finds(line) for pattern in patterns)
