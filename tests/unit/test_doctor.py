"""`trivet doctor` at the terminal: its report, its JSON, its exit status."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts import names, plant
from trivet.base.errors import CheckpointError, ConfigError, TrivetError
from trivet.base.findings import Finding
from trivet.cli.doctor import doctor
from trivet.driver.checks import CHECKS
from trivet.driver.formats import junit
from trivet.driver.need import need_of
from trivet.driver.summary import ranges

HOSTS = Path(__file__).parents[1] / "fixtures" / "hosts"
OUTPUTS = Path(__file__).parents[1] / "fixtures" / "outputs"
EXPLAINED = Path(__file__).parents[1] / "fixtures" / "explain"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(
        doctor, [str(each) for each in arguments], env={"TRIVET_CACHE": "/data/trivet", "LC_ALL": "C"}
    )


@pytest.mark.parametrize(
    ("exit_code", "name"), [(0, "epyc-vm"), (0, "kunpeng-910b"), (2, "kunpeng-container"), (0, "garbled")]
)
def test_a_host_gives_its_report_and_exit_status(exit_code, name):
    result = invoke("--root", HOSTS / name)

    assert (HOSTS / f"{name}.txt").read_text() == result.output
    assert exit_code == result.exit_code


COMPOSED = [
    (0, "a2"), (0, "a3"), (0, "310p"), (2, "wrong-firmware"), (3, "cann-too-new"), (3, "not-sourced"), (3, "two-canns"),
    (2, "container-without-mounts"), (2, "owner-mismatch"), (2, "hot-device"),
]  # fmt: skip


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("exit_code", "name"), COMPOSED)
def test_a_whole_host_gives_its_report_in_both_languages(exit_code, name, language, tmp_path):
    result = invoke("--root", plant(name, tmp_path / name), "--lang", language)
    report = HOSTS / f"{name}{'.zh' if language == 'zh' else ''}.txt"

    assert report.read_text() == result.output
    assert exit_code == result.exit_code


def test_every_composed_host_has_its_report():
    assert names() == tuple(name for _, name in COMPOSED)


def test_a_pipeline_gets_a_case_for_each_check(tmp_path):
    text = invoke("--root", plant("two-canns", tmp_path / "host"), "--format", "junit").output
    root = ElementTree.fromstring(text)

    assert {each.name for each in CHECKS} == {case.get("name") for case in root.iter("testcase")}
    assert ["two_canns"] == [case.get("name") for case in root.iter("testcase") if case.find("failure") is not None]


def test_a_page_gets_a_table_whose_cells_hold(tmp_path):
    text = invoke("--root", plant("container-without-mounts", tmp_path / "host"), "--format", "markdown").output
    rows = [line for line in text.splitlines() if line.startswith("| ")]

    assert text.startswith("**The driver layer does not carry: driver_libraries_missing, ")
    assert {6} == {row.replace("\\|", "").count("|") for row in rows}


def test_two_formats_at_once_are_refused():
    assert "two formats" in invoke("--json", "--format", "junit").output


def test_what_a_release_wants_is_listed(tmp_path):
    root = plant("cann-too-new", tmp_path / "host")
    result = invoke("--root", root, "--want", "vllm-ascend==0.23.0")

    assert result.output.startswith("vllm-ascend 0.23.0: 1 of 8 parts would have to change\n")
    assert "→ driver         24.1.rc3 → 26.0.RC1, " in result.output
    assert 2 == result.exit_code


def test_a_release_that_is_at_home_asks_for_nothing(tmp_path):
    result = invoke("--root", plant("a2", tmp_path / "host"), "--want", "vllm_ascend==v0.23.0", "--json")

    assert 0 == result.exit_code
    assert {True} == {part["fits"] for part in json.loads(result.output)["parts"]}


@pytest.mark.parametrize(
    ("said", "text"),
    [("is no NAME==VERSION", "vllm-ascend"), ("is no NAME==VERSION", "cuda==12.1"), ("no such release", "cann==99.0")],
)
def test_a_release_that_nobody_knows_is_refused_with_what_is_known(said, text):
    result = invoke("--root", HOSTS / "epyc-vm", "--want", text)

    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)


def test_the_live_host_gets_a_report_that_begins_with_the_verdict():
    result = invoke()

    assert result.output.startswith("The ")
    assert "\nRead\n  host     Linux " in result.output


def test_what_the_cpu_can_carry_without_its_npus_is_carried_when_the_cpu_is_asked_for():
    result = invoke("--root", HOSTS / "kunpeng-container", "--device", "cpu")

    assert 0 == result.exit_code
    assert result.output.startswith("The host carries; warnings: ")


def test_an_npu_that_is_asked_for_and_absent_fails():
    result = invoke("--root", HOSTS / "epyc-vm", "--device", "npu")

    assert 2 == result.exit_code
    assert result.output.startswith("The driver layer does not carry: npu_absent")


def test_json_holds_verdict_findings_and_facts():
    body = json.loads(invoke("--root", HOSTS / "kunpeng-container", "--json").output)

    assert "failed" == body["verdict"]
    assert {"code", "severity", "leg", "layer", "name", "outcome", "detail", "remedy", "because", "source"} == set(
        body["findings"][0]
    )
    assert 1.5 == body["facts"]["cgroup"]["cpu_quota"]


def test_a_host_that_was_pasted_is_examined_like_one_that_is_there():
    result = invoke("--json", "--pasted", next(OUTPUTS.glob("collect-env-17-*.txt")))

    facts = json.loads(result.output)["facts"]
    assert ["Critical"] == [chip["health"] for chip in facts["npu_smi"]["chips"] if chip["health"] != "OK"]
    assert ("5.15.0-78-generic", "8.1.RC1") == (facts["kernel"], facts["stack"]["cann"][0]["version"])


def test_a_text_that_tells_of_no_host_is_not_taken_for_one_that_carries():
    result = invoke("--pasted", "it does not work\n")

    assert isinstance(result.exception, TrivetError)
    assert "nothing in the text tells of a host" in result.exception.message


def test_an_interpreter_is_one_of_this_host_wherever_it_is_asked_from(monkeypatch):
    here = Path(sys.executable)
    monkeypatch.chdir(here.parent)
    by_name, absent = (invoke("--json", "--python", each) for each in (here.name, "no-python"))

    assert str(here) == json.loads(by_name.output)["facts"]["stack"]["python"]["executable"]
    assert isinstance(absent.exception, TrivetError)


@pytest.mark.parametrize("option", [("--probe",), ("--python", "/usr/bin/python3"), ("--root", HOSTS)])
def test_what_asks_a_host_is_refused_beside_a_pasted_one(option):
    assert 2 == invoke("--pasted", "npu-smi info", *option).exit_code
    assert "--pasted examines a text" in invoke("--pasted", "npu-smi info", *option).output


def test_a_probe_reads_at_the_place_of_the_model(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(1 << 20))
    (tmp_path / "config.json").write_text("{}")

    facts = json.loads(invoke("--json", "--probe", "--model", tmp_path).output)["facts"]
    assert str(tmp_path) in [probe["path"] for probe in facts["reading"]]
    assert 64 << 20 == facts["pinning"]["asked_bytes"]


def sparse(path: Path, num_bytes: int) -> Path:
    with path.open("wb") as file:
        file.truncate(num_bytes)
    return path


def test_memory_and_disk_are_held_against_the_sizes_of_a_models_files(tmp_path):
    sparse(tmp_path / "model-00001-of-00002.safetensors", 12 << 30)
    sparse(tmp_path / "model-00002-of-00002.safetensors", 12 << 30)
    (tmp_path / "config.json").write_text("{}")
    result = invoke("--root", HOSTS / "epyc-vm", "--model", tmp_path)

    assert 6 == result.exit_code
    assert "✗ memory_short: 23.0 GiB of memory available, at least 24.0 GiB needed\n" in result.output
    assert "disk_short" in result.output.partition("Ruled out")[2]


def test_a_package_needs_no_room_in_the_cache(tmp_path):
    sparse(tmp_path / "weights.safetensors", 1 << 40)
    (tmp_path / "trivet.json").write_text("{}")
    result = invoke("--root", HOSTS / "kunpeng-910b", "--model", tmp_path)

    assert result.output.startswith("The user-config layer does not carry: memory_short")


def test_a_folder_without_weights_is_refused(tmp_path):
    result = invoke("--root", HOSTS / "epyc-vm", "--model", tmp_path)

    assert isinstance(result.exception, CheckpointError)
    assert str(result.exception).startswith(f"{tmp_path}: holds no weights")


def test_a_model_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        need_of(tmp_path / "absent", None, tmp_path)


@pytest.mark.parametrize(("text", "ids"), [("", ()), ("3", (3,)), ("0-2,5,7-8", (8, 0, 1, 2, 5, 7)), ("", None)])
def test_ids_are_written_as_ranges(text, ids):
    assert text == ranges(ids)


def explain(*arguments: object, text: str = "", **environ: str) -> Result:
    return CliRunner().invoke(doctor, ["--explain", *map(str, arguments)], input=text, env={"LC_ALL": "C", **environ})


def test_a_pasted_text_is_explained_instead_of_the_host():
    result = explain("ImportError: libatb.so: cannot open shared object file: No such file or directory")

    assert 0 == result.exit_code
    assert result.output.startswith("Layer: operator\nCause: NNAL (ATB) is not installed")
    assert "→ source /usr/local/Ascend/nnal/atb/set_env.sh\n" in result.output


def test_an_explanation_as_json_has_the_keys_that_programs_rely_on():
    body = json.loads(explain("-", "--json", text="NPU function error: x, error code is 507015").output)

    assert ["layer", "cause", "confidence", "first_error", "codes", "fix", "next_evidence", "sources"] == list(body)
    assert ("operator", None, "none", ["507015"]) == tuple(
        body[key] for key in ("layer", "cause", "confidence", "codes")
    )


def test_a_cause_that_is_not_known_is_called_so():
    assert "Cause: not known" in explain("the cat sat on the mat").output
    assert "原因: 未知" in explain("the cat sat on the mat", "--lang", "zh").output


@pytest.mark.parametrize(
    ("word", "environ"), [("Layer", {"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}), ("层", {"LC_ALL": "zh_CN.UTF-8"})]
)
def test_the_language_is_that_of_the_locale(word, environ):
    assert explain("ret is -8020", **environ).output.startswith(word)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_servers_log_gets_its_report(language):
    result = explain(EXPLAINED / "card-full.log", "--lang", language)

    assert (EXPLAINED / f"card-full.{language}.txt").read_text() == result.output


def test_a_log_is_read_from_a_file(tmp_path):
    (tmp_path / "serve.log").write_text("(Worker pid=1) OSError: [Errno 24] Too many open files\n")

    assert "→ ulimit -n 65535" in explain(tmp_path / "serve.log").output


def test_what_is_about_a_host_is_refused_beside_a_text():
    result = explain("ret is -8020", "--device", "npu")

    assert 2 == result.exit_code
    assert "--explain reads a text and no host: leave out --device" in result.output


@given(st.text())
def test_whatever_a_tool_printed_is_well_formed_in_a_pipelines_file(text):
    check = CHECKS[0]
    said = junit([check], [Finding("driver", check.name, "failed", text, (text,), check.layer)])

    assert "1" == ElementTree.fromstring(said).find("testsuite").get("failures")
