"""Which words of a captured host tell who and where it is, and what stands in their place.

The same word always gets the same stand-in, so that what belonged together still does. A word that one file gives away
(a password, a host's name) is hidden in all of them. It hides rather too much than too little; versions, PCI addresses
and sizes, which the report lives on, it leaves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Literal, get_args

Kind = Literal["host", "user", "ipv4", "ipv6", "mac", "secret", "serial", "identifier"]

# They name nobody: accounts and hosts that every installation has, and words that readers look for.
_ORDINARY = frozenset(
    (
        *("root", "localhost", "nobody", "admin", "user", "ubuntu", "node", "docker", "kubernetes", "containerd"),
        *("npu", "ascend", "Ascend", "davinci", "HwHiAiUser", "huawei.com", "nvidia.com"),
    )
)
# Shorter ones are hidden only where a rule finds them: everywhere else they are too likely to be something else.
_MIN_WORD: dict[Kind, int] = {"host": 3, "user": 2, "secret": 6, "serial": 6}

_TOP_LEVEL = (
    r"(?:com|net|org|cn|io|ai|dev|edu|gov|mil|local|localdomain|internal|intranet|lan|corp|home|private|example)"
)
_UNIT = r"(?:service|socket|mount|slice|scope|timer|device|target|path|swap)\b"  # of systemd: getty@tty1.service
_SECRET_NAME = (
    r"(?:api[_-]?key|access[_-]?key|private[_-]?key|secret|token(?!iz)|passw(?:or)?d|pwd|credential|auth)[\w.-]{0,64}"
)
_STAMP = (
    r"(?:[a-z]{3} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:?\d\d)?)"  # of syslog, of journald
)
_SERIAL_NAME = r"(?:serial(?:[ _-]*(?:number|num|no))?|s/n|\bsn|[vn]?die[ _]id|uuid|asset tag)"

# The name of a group is the kind of what it holds. What may begin anywhere is bounded, so that a long line stays cheap.
_RULES: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE | re.ASCII)
    for pattern in (
        rf"{_SECRET_NAME}[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?(?P<secret>[^\s\"',;\0&|]+)",
        r"(?:密码|口令|令牌|密钥)\s*[:=：]\s*(?P<secret>[^\s\"',;，；\0]+)",
        r"\bmysql\b[^\n]{0,200}? -p(?P<secret>[^\s\0]+)",
        r"--(?:password|passwd|token|api-key|secret)[\s\0]+(?P<secret>[^\s\0]+)",
        r"\b(?:bearer|basic)\s+(?P<secret>[\w.~+/=-]{8,})",
        r"(?P<secret>-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?)",
        r"(?P<secret>\b(?:(?:hf|gh[pousr])_[a-z0-9]{12,}|AKIA[a-z0-9]{12,}|(?:sk|glpat|xox[abpr])-[\w-]{12,}|eyJ[\w.-]{12,}))",
        r"(?-i:(?P<secret>(?<![A-Za-z0-9_])(?=\w*[a-z])(?=\w*[A-Z])(?=\w*\d)[A-Za-z0-9_+]{32,}={0,2}))",
        r"://(?P<user>[^\s:/@]+)(?::(?P<secret>[^\s/@]+))?@",
        r"://(?:[^\s/@]*@)?(?P<host>[a-z][\w-]*(?:\.[\w-]+)*)",
        rf"(?P<user>(?<![\w.+-])[\w.+-]+)@(?![\w.-]*\.{_UNIT})(?P<host>[a-z][\w-]*(?:\.[\w-]+)*)",
        r"(?:host|hostname|addr|server|endpoint)=(?P<host>[a-z][\w.-]*)(?![\w.:-])",
        rf"(?P<host>(?<![\w.-])[a-z0-9][\w-]*(?:\.[\w-]+)*\.{_TOP_LEVEL})(?![\w-]|\.\w)",
        # What a system's log says of itself and of who came: its own prefix, systemd, sshd, sudo, the mounts of NFS.
        rf"^(?:\[[^\]\n]{{0,30}}\] )?{_STAMP} (?P<host>[a-z][\w.-]*) [\w./@-]+(?:\[\d+\])?:",
        r"hostname(?: set)? to <?(?P<host>[\w.-]+)",
        r"\bserver (?P<host>[a-z][\w.-]*)(?= (?:not responding|OK\b|is\b))",
        r"\biqn\.\d{4}-\d\d\.(?P<host>[\w.:-]+)",
        r"\bfor user (?P<user>[\w.-]+)",
        r"\bAccepted \w+ for (?P<user>[\w.-]+) from",
        r"\bsudo:\s+(?P<user>[\w.-]+) :",
        r" - \S+ (?://)?(?:[^\s@]*@)?(?P<host>[a-z][\w-]*(?:\.[\w-]+)*)(?::/|(?<=//)/)",  # what mountinfo mounts from
        r" - cifs //(?P<host>[^/\s]+)",
        r"/(?:home|Users)/(?P<user>[^/\s:,;\"'\0]+)",
        r"\b(?:user|username|login|owner)(?:=|: ?)(?P<user>[a-z_][^\s,;\"'\0]*)",
        rf"{_SERIAL_NAME}\s*[\"']?\s*:\s*[\"']?(?P<serial>[^\n\"'|,\0]*[^\s\"'|,\0])",
        rf"{_SERIAL_NAME}[\"']?\s*=\s*[\"']?(?P<serial>[^\s\"'|,\0]+)",
        r"serial number (?P<serial>(?:[0-9a-f]{2}-){7}[0-9a-f]{2})",  # lspci: of the card, without a colon
        r"(?P<identifier>(?<![\w.])[0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4}(?![\w.]))",  # a MAC, as switches write it
        r"\benx(?P<identifier>[0-9a-f]{12})\b",  # a network card that is named after its MAC
        r"\b(?:wwn|wwid|naa)\W{0,3}(?:0x)?(?P<identifier>[0-9a-f]{16})(?![0-9a-z])",
        r"(?P<mac>(?<![\w:.-])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:-]))",
        r"(?P<mac>(?<![\w:.-])(?:[0-9a-f]{2}-){5}[0-9a-f]{2}(?![\w:-]))",
        r"(?P<identifier>[0-9a-f]{8}([-_])[0-9a-f]{4}(?:\2[0-9a-f]{4}){2}\2[0-9a-f]{12})(?![0-9a-z])",
        r"(?P<identifier>(?<![0-9a-z])[0-9a-f]{32,}(?![0-9a-z]))",
        # Neither the inside of a longer number (a firmware's 7.1.0.7.220) nor that of a kernel's release.
        r"(?P<ipv4>(?<![\d.])(?<!\dv)(?<![\d]-)\d{1,3}(?:\.\d{1,3}){3}(?!\d|\.\d|\.(?:dist|egg)-info))",
        r"(?P<ipv6>(?<![\w:.])[0-9a-f:]{0,39}:[0-9a-f]{0,4}:[0-9a-f:]{0,39}(?:\d{1,3}(?:\.\d{1,3}){3})?(?![\w:]))",
    )
)
# Files whose whole content is one such word, or in which the kernel writes addresses as plain hexadecimal.
_WHOLE: tuple[tuple[str, Kind], ...] = (
    (r"proc/sys/kernel/hostname|etc/hostname", "host"),
    (r".*/(?:serial|wwid|nguid|eui|uuid|subsysnqn|hostnqn|\w+_serial|\w+_uuid)|etc/machine-id", "serial"),
)
_HEXADECIMAL = re.compile(r"(?P<identifier>(?<![0-9A-Za-z])(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{8})(?![0-9A-Za-z]))")
_HEXADECIMAL_FILES = re.compile(r"proc/(?:\d+/|self/)?net/.*")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_AFTER_VERSION = re.compile(r"(?:version|release|innerversion)\w*[\"']?\s*[:=]?\s*[\"'\[(]*$", re.IGNORECASE)


@dataclass
class Redactor:
    """Learns from all texts first, and then hides. Paths are written from the host's "/", without the slash."""

    _standins: dict[tuple[Kind, str], str] = field(default_factory=dict)
    _counts: Counter[Kind] = field(default_factory=Counter)
    _words: re.Pattern[str] | None = None
    _kinds: dict[str, Kind] = field(default_factory=dict)  # of each word that is hidden wherever it stands

    def know(self, kind: Kind, words: Iterable[str]) -> None:
        for word in words:
            if word not in _ORDINARY:
                self._standin(kind, word)

    def learn(self, path: str, text: str, is_name: bool = False) -> None:
        for _, _, kind, word in _found(path, text, is_name):
            self._standin(kind, word)

    def hide(self, path: str, text: str, is_name: bool = False) -> str:
        """`text`, the content of the file at `path`, or with `is_name` a path there, without what tells of anybody."""
        found = (*_found(path, text, is_name), *self._known(path, text, is_name))
        pieces, done = list[str](), 0
        for start, end, kind, word in sorted(found, key=lambda span: (span[0], -span[1])):
            if start >= done:
                pieces += (text[done:start], self._standin(kind, word))
            done = max(done, end)  # where two overlap, what sticks out goes too
        return "".join((*pieces, text[done:]))

    def summary(self) -> dict[str, int]:
        """How many different words of each kind were hidden."""
        return {kind: self._counts[kind] for kind in get_args(Kind) if self._counts[kind]}

    def _known(self, path: str, text: str, is_name: bool) -> Iterator[tuple[int, int, Kind, str]]:
        if self._words is None:
            longest_first = sorted(self._kinds, key=lambda word: (-len(word), word))
            alternatives = "|".join(map(re.escape, longest_first)) or r"(?!)"
            self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{alternatives})(?![A-Za-z0-9])")
        if not (is_name and _is_of_the_kernel(path)):
            yield from ((*match.span(), self._kinds[match[0]], match[0]) for match in self._words.finditer(text))

    def _standin(self, kind: Kind, word: str) -> str:
        known = self._standins.get((kind, word))
        if known is None:
            self._counts[kind] += 1
            known = self._standins[kind, word] = _standin(kind, word, self._counts[kind])
            if len(word) >= _MIN_WORD.get(kind, len(word) + 1) and word not in self._kinds:
                self._kinds[word] = kind
                self._words = None
        return known


def _found(path: str, text: str, is_name: bool) -> Iterator[tuple[int, int, Kind, str]]:
    """Every place where a rule finds something: start, end, kind, word."""
    kind = next((kind for pattern, kind in _WHOLE if re.fullmatch(pattern, path)), None)
    word = text.strip(" \n\0")
    if kind is not None and word and not is_name:
        start = text.index(word)
        yield start, start + len(word), kind, word
    rules = (*_RULES, _HEXADECIMAL) if _HEXADECIMAL_FILES.fullmatch(path) else _RULES
    for rule in rules:
        for match in rule.finditer(text):
            for kind in get_args(Kind):
                if kind in rule.groupindex and match[kind] is not None and _is_telling(kind, match[kind], match):
                    yield match.start(kind), match.end(kind), kind, match[kind]


def _is_telling(kind: Kind, word: str, match: re.Match[str]) -> bool:
    """Loopback, masks and "any" say nothing, and a number after the word version is none of an address."""
    if kind in ("host", "user"):
        return word not in _ORDINARY
    if kind == "identifier":
        return bool(word.strip("0-_"))
    if kind == "serial":  # a USB host says its PCI address, which is no secret and stands everywhere
        return _PCI_ADDRESS.fullmatch(word) is None
    if kind not in ("ipv4", "ipv6"):
        return True
    try:
        address = IPv4Address(word) if kind == "ipv4" else IPv6Address(word)
    except AddressValueError:
        return False
    if address.is_loopback or address.is_unspecified or word.startswith("255."):
        return False
    before = match.string[max(0, match.start() - 40) : match.start()]
    return _AFTER_VERSION.search(before) is None


def _is_of_the_kernel(path: str) -> bool:
    """There "node1" is a NUMA node, whatever the host is called; groups of processes are named by people."""
    return path.startswith("sys/") and not path.startswith("sys/fs/")


def _standin(kind: Kind, word: str, number: int) -> str:
    """Of the same form, so that whoever parses the word can parse this. The addresses are those set aside for tests."""
    match kind:
        case "ipv4":  # RFC 2544: 198.18.0.0/15
            return str(IPv4Address("198.18.0.0") + number)
        case "ipv6":  # RFC 3849
            return str(IPv6Address("2001:db8::") + number)
        case "mac":  # of local administration
            separator = "-" if "-" in word else ":"
            return separator.join(("02", *re.findall("..", f"{number:010x}")))
        case "identifier":
            digits = iter(f"{number:0{sum(map(str.isalnum, word))}x}")
            return "".join(next(digits) if each.isalnum() else each for each in word)
        case _:
            return f"{kind}-{number}"
