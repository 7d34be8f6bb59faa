"""What asys and upgrade-tool say of a device is read whole or not at all, and checks use it."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.hosts import facts_of
from trivet.driver.checks import examine
from trivet.driver.need import Need
from trivet.driver.npu_facts import NpuDevice
from trivet.driver.readers.device_tools import parse_devices
from trivet.driver.readers.host import read_facts

OUTPUTS = Path(__file__).parents[1] / "fixtures" / "outputs"
HEALTH = (OUTPUTS / "079-asys-health-warning.txt").read_text()
FIRMWARE = (OUTPUTS / "095-upgrade-tool-fw-310P3.txt").read_text()
CODES, VERSION = ("0xa419321c",), "6.4.12.1.241"
A2 = facts_of("a2")


def outcome(name, devices, facts=A2):
    findings = examine(replace(facts, npu_devices=devices), Need())
    return next(each.outcome for each in findings if each.name == name)


@given(st.integers(0, len(HEALTH)), st.integers(0, len(FIRMWARE)))
def test_a_text_that_is_cut_gives_no_wrong_value(health, firmware):
    for device in parse_devices(HEALTH[:health] + "\n" + FIRMWARE[:firmware]) or ():
        assert device.error_codes in (None, CODES)
        assert device.health in (None, "Warning")
        assert device.firmware_version in (None, VERSION)


def test_both_tools_speak_of_one_device():
    assert (NpuDevice(0, "Warning", CODES, ("lp pmbus error",), VERSION),) == parse_devices(HEALTH + FIRMWARE)


def test_components_that_differ_give_no_version():
    text = FIRMWARE.replace('hlink, "version":6.4.12.1.241', 'hlink, "version":6.4.12.1.240')

    assert (NpuDevice(0, None, None, (), None),) == parse_devices(text)


def test_fewer_codes_than_announced_are_no_list():
    assert parse_devices(HEALTH.replace("Num: 1", "Num: 2"))[0].error_codes is None


def test_firmware_that_upgrade_tool_prints_is_held_against_the_driver():
    facts = replace(A2, npu_smi=replace(A2.npu_smi, boards=None))

    assert "failed" == outcome("firmware_does_not_fit", parse_devices(FIRMWARE), facts)
    assert "passed" == outcome("firmware_does_not_fit", None, facts)


def test_a_fault_code_of_asys_is_a_fault():
    assert "failed" == outcome("npu_fault_codes", parse_devices(HEALTH))


def test_what_asys_does_not_find_healthy_is_a_warning():
    assert "warning" == outcome("npu_unhealthy", parse_devices(HEALTH))
    assert "passed" == outcome("npu_unhealthy", parse_devices((OUTPUTS / "078-asys-status.txt").read_text()))


def test_a_device_that_a_tool_speaks_of_is_there():
    assert "passed" == outcome(
        "npu_absent", parse_devices(FIRMWARE), replace(A2, pci=None, device_nodes=None, npu_smi=None)
    )


def test_an_output_of_asys_in_a_captured_tree_gives_a_verdict(tmp_path):
    (tmp_path / "captured").mkdir()
    (tmp_path / "captured/asys-health.txt").write_text(HEALTH)
    findings = {finding.name: finding.outcome for finding in examine(read_facts(tmp_path), Need())}

    assert {"npu_absent": "passed", "npu_fault_codes": "failed", "npu_unhealthy": "warning"}.items() <= findings.items()
