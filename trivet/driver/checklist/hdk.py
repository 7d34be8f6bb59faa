"""Checks of the HDK, the driver and its firmware: what their version files say of each other, without npu-smi."""

from __future__ import annotations

from trivet.driver.check import Judgement, check, failed, note, passed, unknown, unread
from trivet.driver.facts import HostFacts
from trivet.driver.need import Need
from trivet.driver.versions import firmware_fits

_VERSION_FILES = "version.info of driver and firmware; dcmi_inner_info_get.c of the open Ascend driver"
_MEND = "sudo ./Ascend-hdk-<chip>-npu-firmware_<version>.run --full, of the driver's own release; then reboot"


@check("DRV047", "error", source=_VERSION_FILES, needs=("npu_absent",))
def driver_version_unreadable(facts: HostFacts, need: Need) -> Judgement:
    driver = facts.stack.driver if facts.stack else None
    if driver is not None and driver.version is not None:
        return passed("driver {version}, by {file}", version=driver.version, file=driver.file)
    told = facts.npu_smi.driver_version if facts.npu_smi else None
    if told is not None:
        return note("driver {version}, by npu-smi alone: its version.info could not be read", version=told)
    return unread("the driver's version.info")


@check("DRV048", "error", source=_VERSION_FILES, needs=("driver_version_unreadable",))
def firmware_does_not_fit(facts: HostFacts, need: Need) -> Judgement:
    stack = facts.stack
    driver, file = (stack.driver, stack.firmware) if stack else (None, None)
    boards = (facts.npu_smi.boards if facts.npu_smi else None) or ()
    told = [board.firmware_version for board in boards]
    told += [device.firmware_version for device in facts.npu_devices or ()]
    running = sorted({version for version in told if version})
    versions: list[str | None] = [*running] or [file.version if file else None]
    verdicts = [firmware_fits(driver, version, file) for version in versions]
    if driver is None or all(each is None for each in verdicts):
        return unknown("neither the driver's file nor the firmware's says which of the other it takes")
    takes = "-".join(driver.compatible_firmware) if driver.compatible_firmware else "?"
    values = {"driver": driver.version, "firmware": ", ".join(each or "?" for each in versions), "takes": takes}
    if False in verdicts:
        return failed(
            "firmware {firmware} is outside what driver {driver} takes, {takes}, or does not take that driver",
            _MEND,
            **values,
        )
    return passed("firmware {firmware} fits driver {driver}, which takes {takes}", **values)


@check("DRV049", "error", source="npu-smi info -t board: Compatibility; documents of npu-smi", needs=("npu_absent",))
def compatibility_refused(facts: HostFacts, need: Need) -> Judgement:
    boards = (facts.npu_smi.boards if facts.npu_smi else None) or ()
    refused = [board for board in boards if board.compatibility == "NOK"]
    if refused:
        ids = ", ".join(str(board.npu_id) for board in refused)
        return failed("npu-smi says of NPU {ids} that firmware and driver are not compatible", _MEND, ids=ids)
    if any(board.compatibility == "OK" for board in boards):
        return passed("npu-smi finds driver and firmware compatible")
    return unknown("npu-smi gives no verdict on driver and firmware; it may need root")


@check("DRV050", "note", source="outputs of npu-smi 1.8.21 to 26.0", needs=("npu_absent",))
def npu_smi_of_another_driver(facts: HostFacts, need: Need) -> Judgement:
    smi = facts.npu_smi
    if smi is None or smi.tool_version is None or smi.driver_version is None:
        return unread("the version of npu-smi")
    if smi.tool_version == smi.driver_version:
        return passed("npu-smi is of driver {version}", version=smi.driver_version)
    return note(
        "npu-smi {tool} talks to driver {driver}",
        "docker run -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi  # the host's own",
        tool=smi.tool_version, driver=smi.driver_version,
    )  # fmt: skip
