"""What a second look prints, and what a monitor reads."""

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from trivet.base.errors import ResourceError
from trivet.base.findings import Finding
from trivet.cli.doctor import doctor
from trivet.driver.checks import examine
from trivet.driver.facts import HostFacts
from trivet.driver.need import Need
from trivet.driver.npu_facts import NpuChip, NpuErrors, NpuHealth, NpuNetwork, NpuSmi
from trivet.driver.readers.host import read_facts
from trivet.driver.textfile import write_textfile
from trivet.driver.watch import changes, state

HOSTS = Path(__file__).parents[1] / "fixtures" / "hosts"
KUNPENG = read_facts(HOSTS / "kunpeng-910b")
WORDS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("xyz"))


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(doctor, [str(each) for each in arguments], env={"TRIVET_CACHE": "/data/trivet"})


def said(health: str, codes: tuple[str, ...], double_bit: int) -> HostFacts:
    chip = NpuChip(4, 0, 4, "910B2", health, "0000:01:00.0", *[None] * 9)
    return replace(
        KUNPENG,
        npu_smi=NpuSmi(
            commands=(), is_partial=False, tool_version=None, driver_version=None, chips=(chip,), processes=None,
            mappings=None, boards=None, health=(NpuHealth(4, 0, health, codes, ()),),
            errors=(NpuErrors(4, 0, {"HBM Double Bit Error Count": double_bit}, None),), links=None,
        ),
        npu_network=NpuNetwork((), ()),
    )  # fmt: skip


def test_a_fault_of_an_npu_is_a_change_of_its_health_its_codes_and_its_counter():
    before, after = said("OK", (), 0), said("Alarm", ("80E18005",), 2)

    assert (
        "NPU 4 chip 0 health: OK → Alarm",
        "NPU 4 chip 0 error codes: none → 80E18005",
        "NPU 4 chip 0 HBM Double Bit Error Count: 0 → 2",
    ) == changes(state(before, ()), state(after, ()))


def test_an_npu_that_fell_off_the_bus_is_gone_and_a_check_that_fails_is_named():
    lost = replace(KUNPENG, pci=tuple(each for each in KUNPENG.pci or () if each.address != "0000:01:00.0"))
    finding = Finding("driver", "npu_absent", "passed", "")

    assert ("npu_absent: passed → failed", "NPU at 0000:01:00.0: 16 GT/s × 16 → gone") == changes(
        state(KUNPENG, (finding,)), state(lost, (replace(finding, outcome="failed"),))
    )


def test_amounts_that_always_move_are_no_change():
    moved = replace(KUNPENG, memory=replace(KUNPENG.memory, available_bytes=1 << 34))

    assert () == changes(state(KUNPENG, ()), state(moved, ()))


@given(WORDS, WORDS)
def test_there_is_a_line_for_each_difference_and_no_other(before, after):
    names = {line.partition(":")[0] for line in changes(before, after)}

    assert {name for name in "abcdef" if before.get(name) != after.get(name)} == names


@pytest.fixture
def looks(monkeypatch):
    """Instead of a pause, the next of these happens; after the last, somebody interrupts."""
    acts = []

    def pause(seconds: float) -> None:
        if not acts:
            raise KeyboardInterrupt
        acts.pop(0)()

    monkeypatch.setattr(time, "sleep", pause)
    return acts


def test_watching_prints_the_report_and_then_what_changed_and_ends_when_interrupted(tmp_path, looks):
    host = tmp_path / "host"
    shutil.copytree(HOSTS / "kunpeng-910b", host, symlinks=True)
    looks += [lambda: None, lambda: shutil.rmtree(host / "sys/bus/pci/devices/0000:01:00.0"), lambda: None]
    result = invoke("--root", host, "--watch", "--textfile", tmp_path / "trivet.prom")
    report, lines = (HOSTS / "kunpeng-910b.txt").read_text(), result.output.splitlines()

    assert 0 == result.exit_code
    assert result.output.startswith(report)
    assert ["NPU at 0000:01:00.0: 16 GT/s × 16 → gone"] == [line[20:] for line in lines[len(report.splitlines()) :]]
    assert "trivet_doctor_npus 7.0\n" in (tmp_path / "trivet.prom").read_text()


@pytest.mark.parametrize("options", [["--json"], ["--bundle", "x.tar.zst"]])
def test_what_does_not_live_is_not_watched(options):
    assert 2 == invoke("--watch", *options).exit_code


def test_a_monitor_reads_the_outcome_of_every_check(tmp_path):
    findings = examine(KUNPENG, Need())
    write_textfile(tmp_path / "trivet.prom", said("Alarm", (), 0), findings)
    text = (tmp_path / "trivet.prom").read_text()
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}

    assert {(each.name, each.outcome): 1.0 for each in findings} == {
        (each.labels["check"], each.labels["outcome"]): each.value for each in families["trivet_doctor_check"]
    }
    assert [8.0] == [each.value for each in families["trivet_doctor_npus"]]
    assert [({"npu": "4", "chip": "0"}, 0.0)] == [
        (each.labels, each.value) for each in families["trivet_doctor_npu_healthy"]
    ]
    assert ["trivet.prom"] == [each.name for each in tmp_path.iterdir()]


def test_what_is_unknown_has_no_sample(tmp_path):
    write_textfile(tmp_path / "trivet.prom", replace(KUNPENG, pci=None), ())

    assert "trivet_doctor_npus " not in (tmp_path / "trivet.prom").read_text()


def test_a_textfile_that_nobody_would_read_or_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ResourceError, match=r"files that end in \.prom"):
        write_textfile(tmp_path / "trivet.txt", KUNPENG, ())
    with pytest.raises(ResourceError, match="cannot be written"):
        write_textfile(tmp_path / "absent" / "trivet.prom", KUNPENG, ())


def test_what_changed_is_said_in_chinese_too():
    before = state(said("OK", (), 0), (Finding("driver", "npu_hot", "passed", "x"),), "zh")
    after = state(said("Alarm", ("80E18005",), 0), (Finding("driver", "npu_hot", "failed", "x"),), "zh")

    assert ("npu_hot: 通过 → 失败", "NPU 4 芯片 0 健康状态: OK → Alarm", "NPU 4 芯片 0 错误码: 无 → 80E18005") == (
        changes(before, after, "zh")
    )
