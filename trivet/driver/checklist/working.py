"""Checks of what CANN writes: folders for logs and caches, and what its last processes logged."""

from __future__ import annotations

from functools import partial

from trivet.base.units import GIB, format_bytes
from trivet.driver.check import Judgement, check, failed, note, passed, unread, warning
from trivet.driver.facts import HostFacts
from trivet.driver.need import Need

_here = partial(check, layer="operator", needs=("cann_missing",))
# What a run that compiles operators and logs at level 0 leaves behind; below it writing fails in the middle of a start.
_LEAST_BYTES = GIB
_VARIABLES = {"logs": "ASCEND_PROCESS_LOG_PATH", "caches": "ASCEND_CACHE_PATH", "temporary files": "TMPDIR"}


@_here("OPR018", "error", source="CANN runtime docs: ASCEND_PROCESS_LOG_PATH, ASCEND_CACHE_PATH; templates of E40003")
def folders_not_writable(facts: HostFacts, need: Need) -> Judgement:
    known = [each for each in facts.folders or () if each.is_writable is not None]
    if not known:
        return unread("the folders for logs and caches")
    closed = next((each for each in known if each.is_writable is False), None)
    if closed is not None:
        return failed(
            "{path}, for {purpose}, cannot be written by this process",
            "export {variable}=DIR  # one that can be written",
            path=closed.path, purpose=closed.purpose, variable=_VARIABLES[closed.purpose],
        )  # fmt: skip
    free = {each: each.free_bytes for each in known if each.free_bytes is not None}
    full = min(free, key=lambda each: free[each], default=None)
    if full is not None and free[full] < _LEAST_BYTES:
        return warning(
            "{path}, for {purpose}, has {free} free; {least} are wanted",
            "df -h {path}",
            "export {variable}=DIR  # one with more room",
            path=full.path, purpose=full.purpose, free=format_bytes(free[full]), least=format_bytes(_LEAST_BYTES),
            variable=_VARIABLES[full.purpose],
        )  # fmt: skip
    return passed("{count} folders for logs, caches and temporary files can be written", count=len(known))


@_here("OPR019", "note", source="Ascend/pytorch docs, troubleshooting: the first [ERROR] in plog")
def plog_has_errors(facts: HostFacts, need: Need) -> Judgement:
    if facts.plog is None:
        return unread("the folder of plog")
    if not facts.plog.lines:
        return passed("{folder} holds no error of the last processes", folder=facts.plog.source)
    return note(
        "the last processes logged errors in {folder}; the newest begins: {line}",
        "grep -h ERROR {folder}/*.log | trivet doctor --explain -",
        folder=facts.plog.source, line=facts.plog.lines[-1],
    )  # fmt: skip
