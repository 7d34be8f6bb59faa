"""A pasted text as lines: bounded, without prefixes of loggers, each with its time, its codes and its marks.

What the numbers of a line say (who holds the memory) or the text as a whole (two CANNs) becomes a mark at the line's
end, such as `@held_outside`, so that the tables can ask for it as for any other words.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from trivet.driver.explain.marks import marks_of_line, marks_of_text

_MAX_LINE = 4000  # characters; what a line says after that is never what is wrong

# Every repetition is bounded: a hostile line costs no more than a long one.
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_PREFIX = re.compile(
    r"\((?:\w{1,40})[^()\n]{0,60}pid=\d{1,9}(?:, ip=[\d.:a-f]{3,45})?\)\s{0,4}"  # (EngineCore_DP0 pid=118)
    r"|[a-zA-Z][\w.-]{0,60} {1,40}\| (?=\S)"  # docker compose: worker-0  |
    r"|\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP] "  # a pod's log on its node
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} [\w.@/-]{1,64}(?:\[\d{1,9}\])?: "  # journalctl
    r"|\[\d{1,4},\d{1,5}\](?:<std(?:out|err)>)?: ?"  # mpirun --tag-output
    r"|(?:> ?){1,4}(?=\S)"  # quoted in a mail or an issue
    r"|\[rank\d{1,5}\]:?\s{0,2}"
    r"|(?:ERROR|WARNING|INFO|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?: \[[^\]\n]{0,80}\])?:?\s{0,9}"
    r"|plog-[\w.-]{1,60}:"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\dZ+:]{0,16}\s{1,2}"
)
_LONG_TIME = re.compile(r"(?:19|20)\d\d-(\d\d)-(\d\d)[-T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,3}))?")
_SHORT_TIME = re.compile(r"(?:ERROR|WARNING|INFO|CRITICAL) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")

_ROUTINE = re.compile(
    r"\[(?:INFO|DEBUG|EVENT)\]"
    r"|(?:^|[)\]:] {0,2}|\d )(?:INFO|DEBUG)\b"
    r"|^I\d{4,8} "  # glog
)

_CODES = re.compile(
    r"\b(?:ERR\d{5}|MIE\d\dE[0-9A-Z]{6}|[EW][A-Z]\d{4}|[EW]\d{5})\b"
    r"|\b0x[78][0-9a-fA-F]{6,7}\b"
)
_NUMBERS = re.compile(
    r"(?:err[a-z]{0,12}|code|result|ret[a-z]{0,10}|fail[a-z]{0,3}|status|错误码|错误代码|返回码)[^\d\n-]{0,14}"
    r"(\d{6}(?!\d)|-8\d{3}(?!\d))",
    re.IGNORECASE,
)
_FRAME = re.compile(r'\s{0,40}File "([^"\n]{1,300})", line \d')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,80}(?:Error|Exception|Exit|Interrupt)(?::|$)")
# Packages whose own code can be at fault; a frame in another is a user's, or the standard library's.
_PACKAGES = frozenset(
    {"lmdeploy", "llamafactory", "mindformers", "mindspore", "mooncake", "ray", "sglang", "torch_npu", "transformers"}
    | {"verl", "vllm", "vllm_ascend"}
)


@dataclass(frozen=True)
class Line:
    text: str  # as pasted, without colours
    message: str  # what was said, in small letters, with marks; without a logger's prefixes
    codes: tuple[str, ...]
    is_routine: bool  # by its own level: what is said when nothing is wrong
    second: float | None  # when it was said, in seconds of some year, where the line itself says so


# What a keyboard or a web page makes of blanks and of punctuation; the rules are written in plain ones.
_PLAIN = str.maketrans({
    **dict.fromkeys("\u00a0\u2002\u2003\u2009\u202f\u3000", " "),
    "：": ": ", "，": ", ", "（": " (", "）": ") ", "；": "; ",
    **dict.fromkeys("“”", '"'), **dict.fromkeys("‘’", "'"),
})  # fmt: skip
_INVISIBLE = dict.fromkeys((0x0000, 0x200B, 0xFEFF))
_OF_JSON = ("log", "message", "msg")  # the keys under which loggers put what was said


def lines_of(text: str) -> list[Line]:
    """The lines of a text that say something, in the order in which they happened where they say when.

    Sorting is stable: a line without a time stays behind the one before it.
    """
    pasted = [_ANSI.sub("", _unwrapped(row)[:_MAX_LINE]).translate(_INVISIBLE).strip() for row in _rows(text)]
    of_text = marks_of_text([visible.translate(_PLAIN) for visible in pasted])
    timed: list[tuple[float, Line]] = []
    latest = -1.0
    package: str | None = None
    for number, visible in enumerate(pasted):
        if not visible:
            continue
        second = _second_of(visible)
        latest = latest if second is None else second
        said = _said(visible.translate(_PLAIN))
        frame = _FRAME.match(said)
        package = _package_of(frame[1]) if frame else package
        marks = [*marks_of_line(said), *of_text.get(number, ())]
        if _EXCEPTION.match(said):
            marks += [f"@in:{package}"] if package else []
            package = None
        timed.append(
            (latest, Line(visible, " ".join((said.casefold(), *marks)), codes_in(said), _is_routine(visible), second))
        )
    return [line for _, line in sorted(timed, key=lambda each: each[0])]


def codes_in(text: str) -> tuple[str, ...]:
    """The error codes of one line, in their order: `EI0006`, `507015`, `-8005`, `0x7020023`, `ERR00100`."""
    found = [(match.start(), match[0]) for match in _CODES.finditer(text)]
    found += [(match.start(1), match[1]) for match in _NUMBERS.finditer(text)]
    return tuple(dict.fromkeys(code.lower() if code.startswith("0x") else code for _, code in sorted(found)))


def _rows(text: str) -> list[str]:
    rows = text.splitlines()
    # A log that went through JSON is one line, its ends written as two characters.
    return text.replace("\\n", "\n").splitlines() if len(rows) <= 2 and text.count("\\n") > 2 else rows


def _unwrapped(row: str) -> str:
    """What a line of a log in JSON says: `{"log": "…", "stream": "stderr"}`."""
    if not row.startswith("{") or not row.rstrip().endswith("}") or len(row) > 4 * _MAX_LINE:
        return row
    try:
        fields = json.loads(row)
    except (ValueError, RecursionError):
        return row
    found = (fields.get(name) for name in _OF_JSON) if isinstance(fields, dict) else ()
    return next((said for said in found if isinstance(said, str)), row)


def _said(visible: str) -> str:
    for _ in range(6):
        prefix = _PREFIX.match(visible)
        if prefix is None:
            break
        visible = visible[prefix.end() :]
    return visible


def _is_routine(visible: str) -> bool:
    return _ROUTINE.search(visible, 0, 160) is not None


def _second_of(visible: str) -> float | None:
    """The first time in the line, its logger's: lines of one logger are then all told apart to the same precision."""
    found = [match for form in (_LONG_TIME, _SHORT_TIME) if (match := form.search(visible)) is not None]
    if not found:
        return None
    match = min(found, key=lambda each: each.start())
    month, day, hour, minute, second, *fraction = (int(each or 0) for each in match.groups())
    milliseconds = fraction[0] if fraction else 0
    return float((((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second) + milliseconds / 1000


def _package_of(path: str) -> str | None:
    names = [name for name in PurePosixPath(path).parts if name in _PACKAGES]
    return names[-1] if names else None
