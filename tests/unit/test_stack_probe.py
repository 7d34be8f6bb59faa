"""A stack that is tried in a child breaks the child and no more; what it did before that is told."""

import socket
import sys
from pathlib import Path

import pytest

from trivet.driver.readers.stack_probe import probe_master, probe_stack
from trivet.driver.stack_facts import Cann, Package, Python, Stack

ACL = """
class rt:
    get_device_count = staticmethod(lambda: (2, 0))
    set_device = staticmethod(lambda number: {code})
    get_mem_info = staticmethod(lambda kind: (1 << 30, 2 << 30, 0))
init = lambda: 0
get_soc_name = lambda: "Ascend910B2"
"""
CANN = Cann(
    "/opt/cann", True, ("ASCEND_HOME_PATH",), None, "9.1.0", None, None, None, None, None, None, None, None, None
)


def stack(*packages: str, has_cann: bool = False) -> Stack:
    python = Python(sys.executable, "3", (), tuple(Package(name, "1", "/x") for name in packages), None, None, None)
    return Stack(None, None, None, (CANN,) if has_cann else (), (), python, {}, {}, None)


def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str, *packages: str, timeout_s=20.0):
    (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    probe = probe_stack(stack(*packages, has_cann=module == "acl"), timeout_s)
    return {trial.step: trial for trial in probe.trials}


def test_an_acl_that_works_is_told_step_by_step(tmp_path, monkeypatch):
    trials = tried(tmp_path, monkeypatch, "acl", ACL.format(code=0))

    assert {"acl": "done", "device count": "done", "device": "done", "soc name": "done"} == {
        step: trial.outcome for step, trial in trials.items()
    }
    assert ("2", "Ascend910B2") == (trials["device count"].said, trials["soc name"].said)


def test_a_code_that_is_not_zero_is_what_failed(tmp_path, monkeypatch):
    trials = tried(tmp_path, monkeypatch, "acl", ACL.format(code=507033))

    assert "failed" == trials["device"].outcome
    assert "507033" in trials["device"].said
    assert "soc name" not in trials


def test_a_child_that_crashes_is_told_of_with_its_last_step(tmp_path, monkeypatch):
    text = "import os, signal, sys\nprint('free(): invalid pointer', file=sys.stderr, flush=True)\n"
    trials = tried(tmp_path, monkeypatch, "acl", text + "os.kill(os.getpid(), signal.SIGKILL)\n")

    assert ("died", "free(): invalid pointer") == (trials["acl"].outcome, trials["acl"].said)


def test_a_child_that_hangs_is_ended(tmp_path, monkeypatch):
    trials = tried(tmp_path, monkeypatch, "acl", "import time\ntime.sleep(600)\n", timeout_s=1.0)

    assert "timed_out" == trials["acl"].outcome


def test_a_module_that_is_not_there_is_absent(tmp_path, monkeypatch):
    trials = tried(tmp_path, monkeypatch, "other", "", "mindspore")

    assert "absent" == trials["mindspore"].outcome


def test_an_import_that_lacks_a_library_is_told_in_the_loaders_words(tmp_path, monkeypatch):
    text = "raise ImportError('libatb.so: cannot open shared object file: No such file or directory')"
    (tmp_path / "torch.py").write_text("__version__ = '2.10.0'\n")
    trials = tried(tmp_path, monkeypatch, "torch_npu", text, "torch-npu")

    assert ("done", "failed") == (trials["torch"].outcome, trials["torch_npu"].outcome)
    assert "libatb.so" in trials["torch_npu"].said


@pytest.mark.parametrize(
    ("printed", "outcome"),
    [("calculated successfully", "done"), ("[ERROR] KERNEL x\\nsuccessfully", "failed"), ("", "failed")],
)
def test_mindspore_is_believed_where_it_says_so_and_logs_no_error(tmp_path, monkeypatch, printed, outcome):
    text = f"__version__ = '2.6.0'\ndef run_check():\n    print('{printed}')\n"

    assert outcome == tried(tmp_path, monkeypatch, "mindspore", text, "mindspore")["mindspore"].outcome


def test_where_there_is_nothing_to_try_nothing_is_tried():
    assert None is probe_stack(stack())


def test_the_place_where_ranks_meet_takes_connections_or_says_why_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert None is probe_master({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}).refusal

    assert probe_master({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}).refusal
    assert None is probe_master({"MASTER_ADDR": "127.0.0.1"})
    assert None is probe_master({"MASTER_ADDR": "x", "MASTER_PORT": "0"})
