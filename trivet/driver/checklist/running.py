"""Checks of the frameworks as they ran: what `--probe` had the serving interpreter try with torch and MindSpore."""

from __future__ import annotations

from functools import partial

from trivet.driver.check import Judgement, check, failed, not_asked, passed, unknown
from trivet.driver.facts import HostFacts
from trivet.driver.installed import chips, environment
from trivet.driver.need import Need
from trivet.driver.readers.device_nodes import CONTROL_NODES

_here = partial(check, layer="framework")
_NOT_TRIED = "the stack was not tried: trivet doctor --probe does"
_NOT_REACHED = "it was not reached: an earlier step did not succeed"
_EXPLAIN = "trivet doctor --explain '{how}'"


@_here("FRM013", "block", source="Ascend/pytorch docs: import torch_npu", needs=("npu_absent",))
def torch_npu_import_fails(facts: HostFacts, need: Need) -> Judgement:
    tried = facts.running
    if tried is None:
        return not_asked(_NOT_TRIED)
    torch, own = tried.get("torch"), tried.get("torch_npu")
    if torch is None:
        return not_asked("torch_npu is not installed in this interpreter")
    wrong = next((trial for trial in (torch, own) if trial is not None and trial.outcome != "done"), None)
    if wrong is not None:
        return failed("import {step}: {how}", _EXPLAIN, step=wrong.step, how=wrong.how)
    if own is None:
        return unknown(_NOT_REACHED)
    return passed("torch {torch} and torch_npu {own} are imported", torch=torch.said or "?", own=own.said or "?")


@_here("FRM014", "block", source="torch_npu: torch.npu.device_count", needs=("torch_npu_import_fails",))
def npus_invisible_to_torch(facts: HostFacts, need: Need) -> Judgement:
    trial = facts.running.get("torch devices") if facts.running else None
    if trial is None:
        return unknown(_NOT_REACHED)
    nodes = [node for node in facts.device_nodes or () if node.path not in CONTROL_NODES]
    visible = (environment(facts) or {}).get("ASCEND_RT_VISIBLE_DEVICES")
    count = len(visible.split(",")) if visible else len(chips(facts)) or len(nodes)
    if trial.outcome == "done" and trial.said == str(count):
        return passed("torch sees all {count} NPUs", count=count)
    return failed(
        "torch sees {said} NPUs of {count}",
        "export ASCEND_RT_VISIBLE_DEVICES=0,1  # numbers below {count}, ascending, commas, no blanks",
        "grep -h -m1 ERROR ~/ascend/log/debug/plog/*.log | trivet doctor --explain -",
        said=trial.said if trial.outcome == "done" else f"0 ({trial.how})", count=count,
    )  # fmt: skip


@_here("FRM015", "block", source="a sum and a product of small whole numbers, exact in float16",
       needs=("npus_invisible_to_torch",))  # fmt: skip
def npu_computes_wrong(facts: HostFacts, need: Need) -> Judgement:
    trial = facts.running.get("arithmetic") if facts.running else None
    if trial is None:
        return unknown(_NOT_REACHED)
    if trial.outcome == "done":
        return passed("{count} NPUs add and multiply as the CPU does", count=trial.said)
    return failed(
        "a small computation: {how}",
        "npu-smi info -t health -i 0 -c 0",
        "asys diagnose -r=component  # CANN's own test of the hardware",
        how=trial.how,
    )


@_here("FRM016", "error", source="MindSpore docs: mindspore.run_check", needs=("npu_absent",))
def mindspore_check_fails(facts: HostFacts, need: Need) -> Judgement:
    if facts.running is None:
        return not_asked(_NOT_TRIED)
    trial = facts.running.get("mindspore")
    if trial is None:
        return not_asked("MindSpore is not installed in this interpreter")
    if trial.outcome == "done":
        return passed("MindSpore {version} checks itself on an NPU", version=trial.said)
    return failed("mindspore.run_check(): {how}", _EXPLAIN, how=trial.how)
