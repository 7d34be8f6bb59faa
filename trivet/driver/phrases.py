"""What the doctor says, in the language that was asked for. English is in the code; other languages are tables.

A phrase is a template for str.format. Its translation stands beside it in `data/zh.toml` and takes the same values; a
value that is itself a phrase is translated too. A command is the same in every language, but for the comment behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from trivet.base.settings import Language

_COMMENT = "  # "


@dataclass(frozen=True)
class Phrase:
    """A phrase with its values, to be said later; as text it is English."""

    text: str
    values: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.in_language("en")

    def in_language(self, language: Language) -> str:
        return say(language, self.text, self.values)


def say(language: Language, phrase: str, values: Mapping[str, object] | None = None) -> str:
    """`phrase` with its values, in `language`; in English where the table has no such phrase."""
    table = translations() if language == "zh" else {}
    shown = {name: _shown(value, language, table) for name, value in (values or {}).items()}
    command, mark, comment = phrase.partition(_COMMENT)
    said = f"{command}{mark}{table.get(comment, comment)}" if mark else table.get(phrase, phrase)
    return said.format(**shown)


def _shown(value: object, language: Language, table: Mapping[str, str]) -> object:
    if isinstance(value, Phrase):
        return value.in_language(language)
    return table.get(value, value) if isinstance(value, str) else value


@cache
def translations() -> dict[str, str]:
    """English phrase → Chinese."""
    import tomllib  # here, since no start of a server says anything in Chinese

    text = (Path(__file__).parent / "data" / "zh.toml").read_text(encoding="utf-8")
    return {phrase: said for section in tomllib.loads(text).values() for phrase, said in section.items()}
