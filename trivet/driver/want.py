"""What would have to change for a release to be at home here: `trivet doctor --want vllm-ascend==0.23.0`.

A table says which versions were released together; of a release that it does not know it says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trivet.base.errors import ConfigError
from trivet.base.findings import Layer
from trivet.base.settings import Language
from trivet.driver.facts import HostFacts
from trivet.driver.installed import cann, package
from trivet.driver.matrix import COMPONENTS, Row, drivers_of, releases_of, rows_of, takes, takes_python
from trivet.driver.phrases import say
from trivet.driver.pinning import hdk_version
from trivet.driver.versions import matches

_LAYERS: dict[str, Layer] = {"driver": "driver", "cann": "operator"}
_NUM_SUGGESTED = 5


@dataclass(frozen=True)
class Change:
    """One part of a release: what it is here and what it should be. Equal parts are kept, so that all is seen."""

    what: str  # "cann"
    is_now: str | None  # None: not installed, or not known
    wanted: str  # as the table writes it, "26.0.RC1|25.5.X"
    fits: bool
    source: str

    @property
    def layer(self) -> Layer:
        return _LAYERS.get(self.what, "framework")

    @property
    def is_other(self) -> bool:
        """Is there one, and another than is wanted? What is not there cannot be in the way."""
        return not self.fits and self.is_now is not None


def parse_want(text: str) -> tuple[str, str]:
    """The component and version of "vllm-ascend==0.23.0". Raises ConfigError with what the table knows."""
    match = re.fullmatch(r"\s*([\w-]+)\s*==\s*v?(\S+)\s*", text)
    name = match[1].lower().replace("_", "-") if match else None
    if match is None or name not in COMPONENTS:
        known = ", ".join(COMPONENTS)
        raise ConfigError(f"--want {text}: is no NAME==VERSION with a NAME of {known}", "--want vllm-ascend==0.23.0")
    if not rows_of(name, match[2]):
        newest = ", ".join(releases_of(name)[:_NUM_SUGGESTED])
        raise ConfigError(f"--want {text}: the table knows no such release", f"the newest of {name} there: {newest}")
    return name, match[2]


def changes(facts: HostFacts, component: str, version: str) -> tuple[Change, ...]:
    """Every part of the release, lowest first, the driver for its CANN among them."""
    rows = rows_of(component, version)
    wanted_cann = next((row.cann for row in rows if row.cann), None)
    found = [_driver(facts, wanted_cann, rows[0].source)] if wanted_cann else []
    found += [change for change in _parts(facts, component, version, rows) if change is not None]
    return tuple({change.what: change for change in found if change is not None}.values())


def want_report(changes: tuple[Change, ...], name: str, version: str, language: Language) -> str:
    """The parts as a table of text, those that change first, without a trailing newline."""
    other = [each for each in changes if not each.fits]
    phrase = (
        "{name} {version}: {count} of {total} parts would have to change"
        if other
        else "{name} {version} fits this host"
    )
    head = say(language, phrase, {"name": name, "version": version, "count": len(other), "total": len(changes)})
    lines = [f"  {'✓' if each.fits else '→'} {each.what:<14} {_step(each, language)}" for each in changes]
    sources = sorted({each.source for each in changes})
    return "\n".join([head, "", *lines, "", say(language, "Sources"), *(f"  {each}" for each in sources)])


def _step(change: Change, language: Language) -> str:
    if change.fits:
        return change.is_now or ""
    now = change.is_now or say(language, "not there, or not known")
    return f"{now} → {change.wanted.replace('|', ', ')}"


def _driver(facts: HostFacts, wanted_cann: str, source: str) -> Change | None:
    wanted = "|".join(drivers_of(wanted_cann))
    now = hdk_version(facts)
    if not wanted:
        return None
    row = rows_of("cann", wanted_cann)[0]
    return Change("driver", now, wanted, now is not None and takes(wanted, now), row.source)


def _parts(facts: HostFacts, component: str, version: str, rows: tuple[Row, ...]) -> Iterator[Change | None]:
    row, own = rows[0], cann(facts)
    now_cann = own.version if own else None
    wanted_cann = "|".join(dict.fromkeys(each.cann for each in rows if each.cann))
    if wanted_cann:
        yield Change("cann", now_cann, wanted_cann, now_cann is not None and takes(wanted_cann, now_cann), row.source)
    python = facts.stack.python.version if facts.stack and facts.stack.python else None
    if row.python:
        yield Change("python", python, row.python, python is not None and takes_python(row.python, python), row.source)
    columns = {"torch": row.torch, "torch-npu": row.torch_npu, "triton-ascend": row.triton_ascend, "vllm": row.vllm}
    columns |= {component: version} if component != "cann" else {}
    for name, wanted in columns.items():
        now = package(facts, name)
        if wanted:
            fits = now is not None and any(matches(now, each) for each in wanted.split("|"))
            yield Change(name, now, wanted, fits, row.source)
