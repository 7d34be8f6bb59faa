"""Checks of shared libraries by their ELF files: what they need, and what the C libraries here have. None is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trivet.driver.check import Judgement, check, failed, passed, unread
from trivet.driver.facts import HostFacts
from trivet.driver.installed import cann
from trivet.driver.need import Need
from trivet.driver.stack_facts import Library
from trivet.driver.versions import version_key

LOADER = "ld.so(8): the order in which it looks; DT_NEEDED and RUNPATH of the files"
OF_CANN = ("driver", "cann", "nnal")
_MAX_NAMED = 4


@check("OPR016", "error", layer="operator", source=LOADER, needs=("cann_not_sourced",))
def libraries_missing(facts: HostFacts, need: Need) -> Judgement:
    found = [each for each in of_stack(facts) if each.owner in OF_CANN]
    if not found:
        return unread("the libraries of driver, CANN and NNAL")
    lacking = lacking_of(found)
    if not lacking:
        return passed("{count} libraries of driver, CANN and NNAL find all that they need", count=len(found))
    own = cann(facts)
    return failed(
        "libraries that would not load: {lacking}",
        "source {root}/set_env.sh  # puts CANN's own, and the driver's, where the loader looks",
        "docker run -v /usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64  # for libascend_hal, libdrvdsmi",
        lacking=lacking, root=own.root if own else "CANN",
    )  # fmt: skip


@check("OPR017", "error", layer="operator", source="versions of symbols in the ELF files", needs=("cann_missing",))
def libc_too_old(facts: HostFacts, need: Need) -> Judgement:
    stack = facts.stack
    match = re.fullmatch(r"glibc (\S+)", facts.libc or "")
    offered = {"GLIBC": match[1] if match else None, "GLIBCXX": stack.libstdcxx if stack else None}
    asked = [(each, family, each.needs.get(family)) for each in of_stack(facts) for family in offered]
    known = [(each, family, wanted, has) for each, family, wanted in asked if wanted and (has := offered[family])]
    if not known:
        return unread("which C libraries are asked for, or there")
    wrong = [row for row in known if version_key(row[2]) > version_key(row[3])]
    if not wrong:
        return passed("{libc} and GLIBCXX {cxx} have what {count} libraries ask for", libc=facts.libc,
                      cxx=offered["GLIBCXX"] or "?", count=len({row[0].path for row in known}))  # fmt: skip
    library, family, wanted, has = max(wrong, key=lambda row: version_key(row[2]))
    return failed(
        "{library} asks for {family} {wanted}, and the host has {has}",
        "take an image with a newer distribution, or a build for this one",
        library=library.path, family=family, wanted=wanted, has=has,
    )  # fmt: skip


def of_stack(facts: HostFacts) -> tuple[Library, ...]:
    return (facts.stack.libraries if facts.stack else None) or ()


def lacking_of(libraries: Iterable[Library]) -> str:
    """`libatb.so (/usr/…/libtorch_npu.so)` for each that is missing, with the first that needs it."""
    wanted: dict[str, str] = {}
    for library in libraries:
        for name in library.missing:
            wanted.setdefault(name, library.path)
    named = [f"{name} ({path})" for name, path in list(wanted.items())[:_MAX_NAMED]]
    return ", ".join(named) + (", …" if len(wanted) > _MAX_NAMED else "")
