"""What numbers and alphabets of a text say, as words for the tables: who holds the memory, whether text is nonsense."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_UNITS = {"KiB": 1.0, "MiB": 1024.0, "GiB": 1024.0**2}  # in KiB
_SIZES = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) (KiB|MiB|GiB) (total capacity|already allocated|free|reserved)")
_WANTED = re.compile(r"Tried to allocate (\d{1,9}(?:\.\d{1,3})?) (KiB|MiB|GiB)")
_NPU_SMI = re.compile(r"npu-smi v?(\d{1,2})\.\d")
_CANN = re.compile(r"(?:\bversion=|cann[^\d\n]{0,8}|ascend-toolkit/)(\d{1,2})\.\d", re.IGNORECASE)
_CANN_ROOT = re.compile(r"(?:ascend-toolkit/|/cann-|/ascend_)(\d{1,2}\.\d{1,2}(?:\.[a-z0-9]{1,8})?)", re.IGNORECASE)
_FIRST_DRIVER_OF_CANN_8 = 23  # no release of CANN 8 names a driver before 23.0
# Alphabets that stand in ordinary logs beside one another: units, and the scripts of Japanese.
_ORDINARY = frozenset({"LATIN", "GREEK", "MICRO", "FULLWIDTH", "MODIFIER", "MASCULINE", "FEMININE", "COMBINING"})
_ONE_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "KATAKANA-HIRAGANA": "CJK", "HALFWIDTH": "CJK"}


def marks_of_line(said: str) -> list[str]:
    marks = []
    if "out of memory" in said:
        marks += _memory_mark(said)
    if _is_repetition(said):
        marks.append("@repeated_text")
    if not said.isascii() and _is_of_many_scripts(said):
        marks.append("@mixed_scripts")
    return marks


def marks_of_text(lines: Sequence[str]) -> dict[int, list[str]]:
    """Index of a line → marks that follow from several lines; set on the one that completes them."""
    marks: dict[int, list[str]] = {}
    roots: set[str] = set()
    driver_line: int | None = None
    for index, line in enumerate(lines):
        driver = _NPU_SMI.search(line)
        if driver and int(driver[1]) < _FIRST_DRIVER_OF_CANN_8:
            driver_line = index
        cann = _CANN.search(line)
        if driver_line is not None and cann and int(cann[1]) >= 8:
            marks.setdefault(driver_line, []).append("@driver_before_cann")
            driver_line = None
        found = {match[1].casefold() for match in _CANN_ROOT.finditer(line)}
        if len(roots) < 2 <= len(roots | found):
            marks.setdefault(index, []).append("@two_canns")
        roots |= found
    return marks


def _memory_mark(said: str) -> list[str]:
    """From PyTorch's own numbers. A tenth of the card is what a context and HCCL may take outside of the allocator."""
    sizes = {name: float(number) * _UNITS[unit] for number, unit, name in _SIZES.findall(said)}
    wanted = _WANTED.search(said)
    if wanted is None or len(sizes) < 4:
        return []
    capacity, allocated = sizes["total capacity"], sizes["already allocated"]
    free, reserved = sizes["free"], sizes["reserved"]
    tried = float(wanted[1]) * _UNITS[wanted[2]]
    if tried > capacity:
        return ["@request_too_large"]
    if capacity - reserved - free > 0.1 * capacity:
        return ["@held_outside"]
    if reserved - allocated > max(tried, 0.1 * capacity):
        return ["@fragmented"]
    return ["@true_shortage"]


def _is_repetition(said: str) -> bool:
    """A long run of words of which few are different, as a model says that repeats itself."""
    words = [word for word in said[:2000].split() if word.isalpha()]
    return len(words) >= 20 and len(set(words)) * 5 <= len(words)


def _is_of_many_scripts(said: str) -> bool:
    """English beside two more scripts, as a model says that is broken; bytes that are no text do not count."""
    has_latin = any(each.isascii() and each.isalpha() for each in said)
    return has_latin and "\ufffd" not in said and len(_scripts(said)) >= 2


def _scripts(said: str) -> set[str]:
    names = {unicodedata.name(each, "").split(" ")[0] for each in set(said) if not each.isascii() and each.isalpha()}
    return {_ONE_SCRIPT.get(name, name) for name in names if name and name not in _ORDINARY}
