"""Checks of the NPUs as CANN's runtime opened them: what `--probe` had the serving interpreter try with acl."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trivet.driver.check import Judgement, check, failed, not_asked, note, passed, unknown, unread, warning
from trivet.driver.facts import HostFacts
from trivet.driver.installed import KERNELS, family
from trivet.driver.need import Need
from trivet.driver.probe_facts import Step

_here = partial(check, layer="operator", source="documents of the CANN runtime: acl of Python")
_STEPS: tuple[Step, ...] = ("acl", "device count", "device")
# The first call copies kernels to the device. Source: common questions of the CANN runtime, "aclrtSetDevice is slow".
_SLOW_S = 10.0
_EXPLAIN = "grep -h -m1 ERROR ~/ascend/log/debug/plog/*.log | trivet doctor --explain -"
_HINTS: Mapping[str, str] = {
    "107001": "unset ASCEND_RT_VISIBLE_DEVICES  # it names no NPU that is there, or the driver is not loaded",
    "507033": "npu-smi info  # is the card's memory full? then: do driver and CANN fit",
    "500001": "pip install decorator sympy scipy attrs psutil 'numpy<2'  # what CANN's compiler imports",
}


@_here("OPR020", "block", needs=("cann_not_sourced",))
def device_refused(facts: HostFacts, need: Need) -> Judgement:
    tried = facts.running
    if tried is None:
        return not_asked("the stack was not tried: trivet doctor --probe does")
    trials = [trial for step in _STEPS if (trial := tried.get(step)) is not None]
    wrong = next((trial for trial in trials if trial.outcome != "done"), None)
    if not trials or (wrong is not None and wrong.outcome == "absent"):
        return unknown("this interpreter has no module acl: CANN's Python folder is not on PYTHONPATH")
    if wrong is not None:
        hints = [hint for code, hint in _HINTS.items() if code in (wrong.said or "")]
        return failed("{step}: {how}", *(hints or [_EXPLAIN]), step=wrong.step, how=wrong.how)
    return passed("acl opened {count} NPUs", count=trials[1].said if len(trials) > 1 else "?")


@_here("OPR021", "note", needs=("device_refused",))
def first_call_slow(facts: HostFacts, need: Need) -> Judgement:
    trial = facts.running.get("device") if facts.running else None
    if trial is None or trial.seconds is None:
        return unread("how long the first call took")
    if trial.seconds < _SLOW_S:
        return passed("the first call to the NPUs took {seconds:.1f} s", seconds=trial.seconds)
    return note(
        "the first call to the NPUs took {seconds:.1f} s: kernels are copied there once, which is no fault",
        seconds=trial.seconds,
    )


@_here("OPR022", "warning", needs=("device_refused",))
def soc_name_differs(facts: HostFacts, need: Need) -> Judgement:
    trial, kind = facts.running.get("soc name") if facts.running else None, family(facts)
    folder = KERNELS.get(kind or "")
    if trial is None or not trial.said or folder is None:
        return unread("the name that acl gives the chip, or which chip it is")
    # Ascend910B2 is of ascend910b, Ascend910_9392 of ascend910_93: the folder's name begins the chip's.
    if trial.said.lower().startswith(folder):
        return passed("acl calls the chip {name}", name=trial.said)
    return warning(
        "acl calls the chip {name}, and the NPUs are {family}",
        "take the image of this chip: its tag names 910b, a3 or 310p",
        name=trial.said, family=(kind or "").upper(),
    )  # fmt: skip
