"""What a rule looks for in a line: pieces of text in their order. Never a regular expression, so time stays linear.

`libatb.so*cannot open` finds both pieces in one line, in this order, in any case, a piece of several words only where a
word begins; a `^` in front binds the first piece to the beginning of the message; `code:EZ` finds an error code, or one
of its family.
"""

from __future__ import annotations

from dataclasses import dataclass

from trivet.driver.explain.lines import Line


@dataclass(frozen=True)
class Pattern:
    pieces: tuple[str, ...]  # in small letters
    is_anchored: bool
    code: str | None  # what the code begins with; then there are no pieces

    def finds(self, line: Line) -> bool:
        if self.code is not None:
            return any(code.startswith(self.code) for code in line.codes)
        if self.is_anchored and not line.message.startswith(self.pieces[0]):
            return False
        end = 0
        for piece in self.pieces:
            end = _end_of(piece, line.message, end)
            if end < 0:
                return False
        return True


def _end_of(piece: str, message: str, start: int) -> int:
    """Where the first `piece` from `start` on ends, -1 without one.

    One of several words begins where a word does, since "bus error" is none of "pmbus error"; a single word may be part
    of an identifier, as "hostregister" is of "rtsHostRegister".
    """
    found = message.find(piece, start)
    while found > 0 and " " in piece and _is_letter(piece[0]) and _is_letter(message[found - 1]):
        found = message.find(piece, found + 1)
    return found + len(piece) if found >= 0 else -1


def _is_letter(each: str) -> bool:
    return each.isascii() and each.isalpha()


def pattern_of(text: str) -> Pattern:
    """A pattern as the tables write it."""
    if text.startswith("code:"):
        return Pattern((), False, text.removeprefix("code:"))
    pieces = tuple(piece for piece in text.removeprefix("^").casefold().split("*") if piece)
    assert pieces, f"the pattern {text!r} would find every line"
    return Pattern(pieces, text.startswith("^"), None)
