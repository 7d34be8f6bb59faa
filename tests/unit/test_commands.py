"""Tools that answer, fail, hang or are absent: each is told from the other, and nobody waits for long."""

import os
import time
from pathlib import Path

import pytest

from trivet.driver.readers import commands
from trivet.driver.readers.captured import Captured, read_captured
from trivet.driver.readers.commands import ask, output_path
from trivet.driver.readers.hccn import read_npu_network
from trivet.driver.readers.npu_smi import read_npu_smi

OUTPUTS = Path(__file__).parents[1] / "fixtures" / "outputs"
LIVE = Path("/")


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Writes a shell script under the name of a tool, found before any other of that name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(commands, "_DIRECTORIES", (str(folder),))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def write(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return write


def soon(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


def test_a_tool_that_answers_is_heard_with_its_status(tools):
    tools("npu-smi", 'echo "$LC_ALL $*"')

    (output,) = ask(LIVE, Captured(), (("npu-smi", "info", "-m"),), soon())
    assert output is not None
    assert "C info -m\n" == output.text
    assert ("npu-smi info -m", "answered", 0) == (output.command.line, output.command.outcome, output.command.exit_code)


def test_a_tool_that_hangs_is_left_behind_and_what_it_said_is_kept(tools):
    tools("npu-smi", "echo begun; sleep 60")
    start = time.monotonic()

    outputs = ask(LIVE, Captured(), (("npu-smi", "info"), ("npu-smi", "info", "-m")), soon(0.5))
    assert ["timed_out", "timed_out"] == [output.command.outcome for output in outputs]
    assert "begun\n" == outputs[0].text
    assert time.monotonic() - start < 10


def test_nobody_is_asked_when_no_time_is_left(tools):
    tools("npu-smi", "echo begun")

    assert (None,) == ask(LIVE, Captured(), (("npu-smi", "info"),), soon(-1))


def test_an_absent_tool_is_not_a_failed_one(tools):
    (output,) = ask(LIVE, Captured(), (("no-such-tool", "info"),), soon())

    assert ("absent", None) == (output.command.outcome, output.command.exit_code)


def test_a_failure_is_told_by_the_status_or_by_the_words(tools):
    tools("npu-smi", "echo 'DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)'; "
          "echo 'dcmi module initialize failed. ret is -8005'; exit 0")  # fmt: skip
    tools("hccn_tool", "echo 'what is that'; exit 3")

    smi, hccn = ask(LIVE, Captured(), (("npu-smi", "info"), ("hccn_tool", "-i", "0")), soon())
    assert ("failed", 0, -8005) == (smi.command.outcome, smi.command.exit_code, smi.command.dcmi_code)
    assert "dcmi module initialize failed. ret is -8005" == smi.command.complaint
    assert ("failed", 3, None) == (hccn.command.outcome, hccn.command.exit_code, hccn.command.dcmi_code)


def test_a_complaint_beside_an_answer_is_no_failure(tools):
    tools("npu-smi", f"echo 'cannot open the log'; cat {OUTPUTS}/001-910B4-1-25.2.2.txt")

    (output,) = ask(LIVE, Captured(), (("npu-smi", "info"),), soon())
    assert ("answered", "cannot open the log") == (output.command.outcome, output.command.complaint)


def test_npu_smi_is_asked_of_every_card_and_chip(tools):
    tools(
        "npu-smi",
        f'case "$*" in "info") cat {OUTPUTS}/033-A3-Ascend910-25.5.1.txt;; '
        '*-t\\ board*-c*) printf "NPU ID : $5\\nChip ID : $7\\nChip Name : Ascend910\\nNPU Name : 9392\\n";; '
        '*-t\\ board*) printf "NPU ID : $5\\nSoftware Version : 25.5.1\\nCompatibility : OK\\n";; '
        '*-t\\ health*) printf "NPU ID : $5\\nChip ID : $7\\nHealth : OK\\nError Code : NA\\n";; '
        '*-t\\ ecc*) printf "NPU ID : $5\\nChip ID : $7\\nHBM Double Bit Error Count : 2\\n";; '
        "*) exit 1;; esac",
    )

    found = read_npu_smi(LIVE, Captured(), soon())
    assert found is not None
    assert [(4, 0, 8), (4, 1, 9)] == [(chip.npu_id, chip.chip_id, chip.device_id) for chip in found.chips]
    assert [(4, None, "25.5.1"), (4, 0, None), (4, 1, None)] == [
        (board.npu_id, board.chip_id, board.driver_version) for board in found.boards
    ]
    assert [("OK", ()), ("OK", ())] == [(health.health, health.error_codes) for health in found.health]
    assert [{"HBM Double Bit Error Count": 2}] * 2 == [errors.ecc for errors in found.errors]
    assert found.links is None


def test_a_hanging_npu_smi_says_so_and_costs_no_more_than_the_time_agreed(tools):
    tools("npu-smi", "sleep 60")
    start = time.monotonic()

    found = read_npu_smi(LIVE, Captured(), soon(0.5))
    assert found is not None
    assert ("npu-smi info", "timed_out") == (found.commands[0].line, found.commands[0].outcome)
    assert found.chips is None
    assert time.monotonic() - start < 10


def test_an_absent_npu_smi_is_one_command_and_nothing_else(tools):
    found = read_npu_smi(LIVE, Captured(), soon())

    assert found is not None
    assert ["absent"] == [command.outcome for command in found.commands]


def test_a_captured_tree_answers_from_files_and_remembers_what_hung(tmp_path):
    (tmp_path / "captured").mkdir()
    (tmp_path / "captured.json").write_text(
        '{"commands": {"npu-smi info -m": {"outcome": "timed_out", "seconds": 20}}}'
    )
    (tmp_path / output_path(("npu-smi", "info"))).write_text((OUTPUTS / "015-310P3-25.0.rc1.b033.txt").read_text())

    found = read_npu_smi(tmp_path, read_captured(tmp_path), soon())
    assert found is not None
    assert ["answered", "timed_out"] == [command.outcome for command in found.commands]
    assert 8 == len(found.chips)
    assert ["Critical"] == [chip.health for chip in found.chips if chip.health != "OK"]


def test_nothing_is_known_of_tools_in_a_tree_without_their_outputs(tmp_path):
    assert read_npu_smi(tmp_path, Captured(), soon()) is None
    assert read_npu_network(tmp_path, Captured(), (0,), False, soon()) is None


def test_the_address_of_a_port_is_that_of_the_tool_beside_that_of_the_file(tmp_path):
    (tmp_path / "captured").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hccn.conf").write_text("address_0=10.0.200.11\nnetmask_0=255.255.255.0\naddress_1=oops\n")
    (tmp_path / output_path(("hccn_tool", "-i", "0", "-ip", "-g"))).write_text(
        "ipaddr:10.0.200.10\nnetmask:255.255.255.0\n"
    )
    (tmp_path / output_path(("hccn_tool", "-i", "0", "-link", "-g"))).write_text("link status: DOWN\n")

    found = read_npu_network(tmp_path, Captured(), (0, 1), False, soon())
    assert found is not None
    (port,) = found.ports
    assert ("10.0.200.10", "10.0.200.11", "DOWN", None) == (port.address, port.configured_address, port.link, port.fec)
