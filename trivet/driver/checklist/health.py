"""Checks of what npu-smi and the kernel say of the NPUs' health. A tool that hangs or fails is a finding too."""

from __future__ import annotations

from trivet.base.units import format_bytes
from trivet.driver.check import Judgement, check, failed, not_asked, note, passed, unknown, unread, warning
from trivet.driver.chips import npus
from trivet.driver.facts import HostFacts
from trivet.driver.installed import chips, family
from trivet.driver.need import Need
from trivet.driver.npu_facts import Command, NpuChip
from trivet.driver.readers.device_nodes import CONTROL_NODES

_DCMI = "DCMI return codes, in the documents of the open Ascend driver"
_KNOWLEDGE = "knowledge base of ascend-faultdiag (MindCluster)"
# HBM raises its alarm at 95 °C. Source: knowledge base of ascend-faultdiag.
_HOT_C, _TOO_HOT_C = 85, 95
# With 64 isolated rows a card is to be repaired. Source: knowledge base of ascend-faultdiag, entries on HBM.
_MAX_ISOLATED = 64
# An idle chip of an A2, A3 or 950 holds 2.8 to 4.4 GiB of its HBM in outputs of npu-smi 23.0 to 26.0.
_IDLE_BYTES = 6 << 30
_ASYS = "npu-smi was not asked; asys or upgrade-tool spoke with the NPUs"
_SLICE_FROM = 32768  # the numbers of virtual NPUs in outputs of npu-smi 25.5

_MEANINGS: dict[int, tuple[str, str]] = {
    -8005: (
        "an inner error; in a container mostly a card that is held elsewhere",
        "docker ps; npu-smi info  # on the host",
    ),
    -8006: ("the device did not answer in time", "dmesg | tail -50  # then reset the card, or reboot"),
    -8012: ("the device is not ready", "wait until it has started; dmesg | tail -50"),
    -8013: ("not supported in a container", "run it on the host"),
    -8015: ("the device is being reset", "wait, then ask again"),
    -8017: ("the firmware is being upgraded", "wait, then ask again"),
}  # fmt: skip


@check("DRV034", "warning", source="vllm-ascend docs, installation: npu-smi", needs=("device_nodes_unreadable",))
def npu_smi_missing(facts: HostFacts, need: Need) -> Judgement:
    table = _table(facts)
    if table is None and facts.npu_devices:
        return passed(_ASYS)
    if table is None:
        return unknown("npu-smi was not asked")
    if table.outcome != "absent":
        return passed("npu-smi is here")
    return warning(
        "there is no npu-smi, so neither health nor memory of the NPUs can be told",
        "export PATH=$PATH:/usr/local/sbin:/usr/local/bin  # if it lies there",
        "docker run -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi -v /usr/local/dcmi:/usr/local/dcmi",
    )


@check("DRV035", "block", source=_DCMI, needs=("npu_smi_missing",))
def npu_held_elsewhere(facts: HostFacts, need: Need) -> Judgement:
    table = _table(facts)
    if table is not None and table.dcmi_code == -8020:
        return failed(
            "npu-smi: the device is used (-8020); a card serves one container at a time",
            "docker ps; crictl ps  # on the host: which one holds the card? stop it",
        )
    return passed("npu-smi speaks of no other holder")


@check("DRV036", "block", source=_DCMI, needs=("npu_held_elsewhere",))
def npu_smi_fails(facts: HostFacts, need: Need) -> Judgement:
    table = _table(facts)
    if table is None:
        return passed(_ASYS)
    if table.outcome == "answered":
        return passed("npu-smi info answered")
    if table.outcome == "timed_out":
        return failed(
            "npu-smi info did not answer within {seconds:.0f} s: a hot or hanging device does that",
            "dmesg | grep -i -e ascend -e devdrv | tail -50",
            "check the cooling; stop the load; if it stays so, reboot",
            seconds=table.seconds or 20.0,
        )
    meaning, step = _MEANINGS.get(table.dcmi_code or 0, ("a failure that has no entry here", "npu-smi info  # as root"))
    return failed(
        "npu-smi info failed: {complaint} ({meaning})",
        step,
        complaint=table.complaint or "no output", meaning=meaning,
    )  # fmt: skip


@check("DRV037", "error", source=f"{_KNOWLEDGE}: NPU disconnection", needs=("npu_smi_fails",))
def npus_missing_in_npu_smi(facts: HostFacts, need: Need) -> Judgement:
    shown = chips(facts)
    nodes = [node for node in facts.device_nodes or () if node.path not in CONTROL_NODES]
    if facts.npu_smi is None or facts.npu_smi.chips is None:
        return unread("the NPUs in npu-smi info")
    if not shown:
        return failed("npu-smi info lists no NPU", "dmesg | grep -i -e ascend -e devdrv | tail -50", "reboot")
    if facts.npu_smi.is_partial:
        return unknown("the table of npu-smi info breaks off after {count} chips", count=len(shown))
    if len(nodes) > len(shown):
        return failed(
            "npu-smi lists {count} chips, and /dev has {nodes} NPUs",
            "npu-smi set -t reset -i ID -c CHIP -m 1  # of the one that is missing, with nothing running on it",
            "if it is gone from lspci too: reboot; then it is the hardware",
            count=len(shown), nodes=len(nodes),
        )  # fmt: skip
    addresses = {chip.address for chip in shown}
    lost = [npu.address for npu in npus(facts) or () if npu.address not in addresses]
    is_host = facts.container is not None and facts.container.kind == "none"  # a container sees all of the bus
    if lost and is_host and None not in addresses:
        return failed(
            "npu-smi lists {count} chips, and none at {lost}, where the bus has an NPU",
            "npu-smi set -t reset -i ID -c CHIP -m 1  # of the one that is missing, with nothing running on it",
            "dmesg | grep -i -e ascend -e devdrv | tail -50",
            count=len(shown), lost=", ".join(lost),
        )  # fmt: skip
    return passed("npu-smi lists {count} chips, and /dev has {nodes} NPUs", count=len(shown), nodes=len(nodes))


@check("DRV038", "block", source="npu-smi info: the column Health; asys health", needs=("npu_smi_fails",))
def npu_unhealthy(facts: HostFacts, need: Need) -> Judgement:
    shown = chips(facts)
    bad = [chip for chip in shown if chip.health not in (None, "OK")]
    sick = [each for each in facts.npu_devices or () if each.health not in (None, "Healthy")]
    if not bad and sick:  # how bad each of asys' words is, is not known
        return warning(
            "asys says {states}",
            "asys health -d={id}  # the codes of the fault",
            states=", ".join(f"device {each.device_id}: {each.health}" for each in sick), id=sick[0].device_id,
        )  # fmt: skip
    if not bad:
        if not shown or any(chip.health is None for chip in shown):
            return unread("the health of every NPU")
        return passed("{count} chips are healthy", count=len(shown))
    fault = warning if all(chip.health == "Warning" for chip in bad) else failed
    return fault(
        "npu-smi says {states}",
        "npu-smi info -t health -i {id} -c {chip}  # the codes of the fault",
        "npu-smi set -t reset -i {id} -c {chip} -m 1  # with nothing running on it; if it stays so, repair",
        states=", ".join(f"NPU {_name(chip)}: {chip.health}" for chip in bad),
        id=bad[0].npu_id, chip=bad[0].chip_id or 0,
    )  # fmt: skip


@check("DRV039", "error", source=f"{_KNOWLEDGE}: NPU_OS", needs=("npu_smi_fails",))
def npu_fault_codes(facts: HostFacts, need: Need) -> Judgement:
    asked = (facts.npu_smi.health if facts.npu_smi else None) or ()
    listed = [(f"NPU {each.npu_id}", each.error_codes, each.faults) for each in asked]
    listed += [(f"device {each.device_id}", each.error_codes, each.faults) for each in facts.npu_devices or ()]
    known = [(name, codes, said) for name, codes, said in listed if codes is not None]
    faults = [f"{name}: {', '.join((*codes, *said))}" for name, codes, said in known if codes]
    if faults:
        return failed(
            "fault codes: {faults}",
            "trivet doctor --explain CODE  # what it means, where that is known",
            faults="; ".join(faults),
        )
    if not known:
        return unknown("neither npu-smi info -t health nor asys gave a list of fault codes")
    return passed("no fault code on {count} chips", count=len(known))


@check("DRV040", "error", source=f"{_KNOWLEDGE}: HBM; npu-smi info -t ecc", needs=("npu_smi_fails",))
def memory_errors(facts: HostFacts, need: Need) -> Judgement:
    counters = [each for each in (facts.npu_smi.errors if facts.npu_smi else None) or () if each.ecc is not None]
    if not counters:
        return unread("the counters of npu-smi info -t ecc")
    double, isolated = [], []
    for each in counters:
        for name, count in (each.ecc or {}).items():
            words = name.lower()
            if "double" in words and "isolated" not in words and count:
                double.append(f"NPU {each.npu_id} {name} {count}")
            if "isolated" in words and count >= _MAX_ISOLATED:
                isolated.append(f"NPU {each.npu_id} {name} {count}")
    if isolated:
        return failed(
            "too many isolated rows: {counts}", "have the card repaired: {most} is the limit",
            counts="; ".join(isolated), most=_MAX_ISOLATED,
        )  # fmt: skip
    if double:
        return failed(
            "memory errors that could not be corrected: {counts}",
            "stop the load and reset the card; if the counter grows again, have it repaired",
            counts="; ".join(double),
        )
    return passed("no uncorrected memory error on {count} chips", count=len(counters))


@check("DRV041", "error", source=f"{_KNOWLEDGE}: HBM raises an alarm at 95 °C", needs=("npu_smi_fails",))
def npu_hot(facts: HostFacts, need: Need) -> Judgement:
    known = [(chip.temperature_c, chip) for chip in chips(facts) if chip.temperature_c is not None]
    if not known:
        return unread("the temperature of any NPU")
    hottest, chip = max(known, key=lambda pair: pair[0])
    if hottest < _HOT_C:
        return passed("the hottest of {count} chips has {celsius} °C", count=len(known), celsius=hottest)
    fault = failed if hottest >= _TOO_HOT_C else warning
    return fault(
        "NPU {name} has {celsius} °C; at {limit} °C it raises an alarm",
        "check fans, filters and the room; ipmitool sdr type fan",
        name=_name(chip), celsius=hottest, limit=_TOO_HOT_C,
    )  # fmt: skip


@check("DRV042", "note", source="npu-smi info -t pcie-err", needs=("npu_smi_fails",))
def bus_errors_counted(facts: HostFacts, need: Need) -> Judgement:
    counters = [each for each in (facts.npu_smi.errors if facts.npu_smi else None) or () if each.pcie is not None]
    if not counters:
        return unread("the counters of npu-smi info -t pcie-err")
    counts = [f"NPU {each.npu_id} {name} {n}" for each in counters for name, n in (each.pcie or {}).items() if n]
    if not counts:
        return passed("no error on the bus of {count} chips", count=len(counters))
    return note(
        "errors on the bus since the start: {counts}",
        "ask again in a minute: only a counter that grows is a fault; then reseat the card, look for a riser",
        counts="; ".join(counts),
    )


@check("DRV043", "warning", source=f"{_KNOWLEDGE}: OS entries; Linux PCIe AER", needs=("npu_absent",))
def kernel_log_has_faults(facts: HostFacts, need: Need) -> Judgement:
    if facts.kernel_log is None:
        return unknown("the kernel's log could not be read; it may need root")
    marks = ("PCIe Bus Error", "drv_soft_fault", "Out of memory", "heart beat lost", "heartbeat lost")
    lines = [line for line in facts.kernel_log.lines if any(mark.lower() in line.lower() for mark in marks)]
    if not lines:
        return passed("{source} holds no fault of NPU, bus or memory", source=facts.kernel_log.source)
    return warning(
        "faults in {source}: {count}; the last: {line}",
        "trivet doctor --explain -  # with the lines around it pasted",
        source=facts.kernel_log.source, count=len(lines), line=lines[-1],
    )  # fmt: skip


@check("DRV044", "warning", source="outputs of npu-smi 23.0 to 26.0 of idle cards", needs=("npu_smi_fails",))
def memory_held_unseen(facts: HostFacts, need: Need) -> Judgement:
    processes = facts.npu_smi.processes if facts.npu_smi else None
    used = [(chip, chip.hbm_used_bytes) for chip in chips(facts)]
    if used and all(chip.hbm_total_bytes is None for chip, _ in used):
        return not_asked("the memory of these chips is shared with their system")
    if processes is None or not used or any(count is None for _, count in used):
        return unread("the memory in use on every NPU, or its processes")
    busy = {process.npu_id for process in processes}
    held = [
        (chip, count) for chip, count in used if count is not None and count > _IDLE_BYTES and chip.npu_id not in busy
    ]
    if not held:
        return passed("every chip that has more than {idle} in use shows who uses it", idle=format_bytes(_IDLE_BYTES))
    return warning(
        "NPU {name} has {used} in use and shows no process: it is in another container, or ended without letting go",
        "on the host: npu-smi info; docker ps  # stop whoever holds it",
        "npu-smi set -t reset -i {id} -c {chip} -m 1  # if nobody does",
        name=_name(held[0][0]), used=format_bytes(held[0][1]), id=held[0][0].npu_id, chip=held[0][0].chip_id or 0,
    )  # fmt: skip


@check("DRV056", "warning", source="npu-smi info: the table of processes; /proc", needs=("npu_smi_fails",))
def npu_processes_gone(facts: HostFacts, need: Need) -> Judgement:
    if facts.gone_processes is None:
        return unknown("whether the processes that npu-smi lists are alive shows only on the host itself")
    if not facts.gone_processes:
        return passed("every process that npu-smi lists is alive")
    return warning(
        "npu-smi lists processes that are no more: {pids}; what they held is not given back",
        "npu-smi set -t reset -i ID -c CHIP -m 1  # of their card, with nothing else running on it",
        pids=", ".join(map(str, facts.gone_processes)),
    )


@check("DRV058", "note", source="npu-smi info: the table of processes; HCCL docs: EI0019", needs=("npu_smi_fails",))
def npus_in_use(facts: HostFacts, need: Need) -> Judgement:
    processes = facts.npu_smi.processes if facts.npu_smi else None
    if processes is None:
        return unread("the processes on the NPUs")
    if not processes:
        return passed("no process runs on an NPU")
    cards = sorted({process.npu_id for process in processes})
    return note(
        "processes run on NPUs {cards}: a second one shares their memory and streams, and HCCL's port on the card",
        "export ASCEND_RT_VISIBLE_DEVICES=…  # cards that are free; or HCCL_NPU_SOCKET_PORT_RANGE=auto for two jobs",
        cards=", ".join(map(str, cards)),
    )


@check("DRV045", "note", source="outputs of npu-smi 25.5 in virtual machines", needs=("npu_smi_fails",))
def npu_is_slice(facts: HostFacts, need: Need) -> Judgement:
    shown = chips(facts)
    if not shown:
        return unread("the NPUs in npu-smi info")
    slices = [chip for chip in shown if chip.npu_id >= _SLICE_FROM or "vir" in (chip.name or "")]
    if not slices:
        return passed("{count} whole chips", count=len(shown))
    return note("NPU {name} is a slice of a card: memory and cores are those of the slice", name=_name(slices[0]))


@check("DRV046", "warning", source="names in outputs of npu-smi; the SoC lists of CANN", needs=("npu_absent",))
def chip_not_known(facts: HostFacts, need: Need) -> Judgement:
    kind = family(facts)
    if kind is not None:
        return passed("the NPUs are of the family {family}", family=kind.upper())
    names = sorted({chip.name for chip in chips(facts) if chip.name})
    if not names and not npus(facts):
        return unread("which chips these are")
    return warning(
        "these chips are in no table here, or of several kinds: {names}",
        "kernels and images are chosen by hand: npu-smi info -t board -i 0 -c 0",
        names=", ".join(names) or "named by nothing",
    )


def _table(facts: HostFacts) -> Command | None:
    """How the run of `npu-smi info` ended."""
    commands = facts.npu_smi.commands if facts.npu_smi else ()
    return next((each for each in commands if each.line == "npu-smi info"), None)


def _name(chip: NpuChip) -> str:
    return f"{chip.npu_id}" if chip.chip_id in (None, 0) else f"{chip.npu_id} chip {chip.chip_id}"
