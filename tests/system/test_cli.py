"""The command as a person uses it: what it prints, how it exits, and that no error is ever a traceback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.system.tiny import FIXTURES
from trivet.cli import COMMANDS

LLAMA = str(FIXTURES / "llama")
NO_NPU = FIXTURES.parent / "hosts" / "epyc-vm"
RUN = [sys.executable, "-c", "from trivet.cli import main; main()"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def trivet(arguments: Sequence[str], cache: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRIVET_CACHE": str(cache), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([*RUN, *arguments], capture_output=True, text=True, env=environment, input=stdin, timeout=120)
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, cache: Path) -> None:
    done = trivet([*command.split(), "--help"], cache)

    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: trivet {command}")


def test_help_imports_nothing_heavy() -> None:
    script = "import sys; from trivet.cli import cli; cli(['--help'], standalone_mode=False); " \
             "print(sorted({'numpy', 'jinja2', 'tokenizers', 'uvicorn', 'msgspec'} & set(sys.modules)))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

    assert done.stdout.splitlines()[-1] == "[]"


def test_up_climbs_the_three_legs_in_order(cache: Path) -> None:
    done = trivet(["up", LLAMA, "--check-only"], cache)

    assert done.returncode == 0
    verdicts = [line.split(":")[0].split() for line in done.stdout.splitlines() if line[0] != " " and "carr" in line]
    assert verdicts == [["driver", "carries"], ["operators", "carries"], ["framework", "carries"]]


def test_up_gives_the_same_report_as_data(cache: Path) -> None:
    report = json.loads(trivet(["up", LLAMA, "--check-only", "--json"], cache).stdout)

    assert report["failed_leg"] is None
    assert [leg["leg"] for leg in report["legs"]] == ["driver", "operators", "framework"]
    assert report["legs"][2]["measures"]["decode_tokens_per_s"] > 0


def test_up_on_a_device_that_the_host_lacks_stops_at_the_driver_leg(cache: Path) -> None:
    done = trivet(["up", LLAMA, "--check-only", "--device", "npu", "--root", str(NO_NPU)], cache)

    assert done.returncode == 2
    assert "driver     does not carry" in done.stdout
    assert "npu_absent" in done.stdout
    assert "operators" not in done.stdout


def test_a_changed_byte_fails_the_framework_leg_and_is_located(cache: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    trivet(["convert", LLAMA, str(package)], cache)
    shard = next(package.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    done = trivet(["up", str(package), "--check-only"], cache)

    assert done.returncode == 4
    assert "framework  does not carry" in done.stdout
    assert f"{shard}: tensor head.weight at byte" in done.stdout


def test_generate_gives_the_same_text_from_a_folder_and_from_its_package(cache: Path, tmp_path: Path) -> None:
    question = ["Now is better than", "--raw", "--max-tokens", "12"]
    wanted = trivet(["generate", LLAMA, *question], cache)
    trivet(["convert", LLAMA, str(tmp_path / "package")], cache)
    found = trivet(["generate", str(tmp_path / "package"), *question], cache)

    assert wanted.returncode == 0
    assert wanted.stdout.strip() != ""
    assert wanted.stdout == found.stdout


def test_a_prompt_may_come_through_a_pipe(cache: Path) -> None:
    arguments = ["generate", LLAMA, "--raw", "--max-tokens", "4"]

    assert trivet([*arguments, "simple"], cache).stdout == trivet(arguments, cache, stdin="simple").stdout


def test_a_closed_standard_input_is_an_empty_one(cache: Path) -> None:
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *RUN, "generate", LLAMA]
    done = subprocess.run(closed, capture_output=True, text=True, timeout=60)

    assert "PROMPT is empty" in done.stderr.splitlines()[0]


INTERRUPTED = """
import os, signal, sys
from trivet.cli import main, options

def interrupt(self, doing, done, total):
    if done > 250_000:
        os.kill(os.getpid(), signal.SIGINT)

options.Progress.__call__ = interrupt
main(sys.argv[1:])
"""


def test_ctrl_c_says_what_is_kept_and_the_same_command_continues(cache: Path, tmp_path: Path) -> None:
    arguments = ["convert", LLAMA, str(tmp_path / "package"), "--shard-size", "100000"]
    command = [sys.executable, "-c", INTERRUPTED, *arguments]
    stopped = subprocess.run(command, capture_output=True, text=True, timeout=120)
    went_on = trivet(arguments, cache)

    assert stopped.returncode == 130
    assert stopped.stderr == (
        f"trivet: interrupted, what is complete is in {tmp_path}/package.partial: the same command continues\n"
    )
    assert "3 shards were there" in went_on.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "package"]


def test_a_file_that_may_not_grow_is_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)); "
    command = [sys.executable, "-c", limited + RUN[-1], "convert", LLAMA, str(tmp_path / "package")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_conversion_as_data_has_its_steps_and_the_time_of_each_node(cache: Path, tmp_path: Path) -> None:
    report = json.loads(trivet(["convert", LLAMA, str(tmp_path / "package"), "--json"], cache).stdout)

    assert [step["step"] for step in report["steps"]] == [
        "parse", "build", "map", "optimise", "plan", "inject", "verify",
    ]  # fmt: skip
    assert len(report["verification"]["node_times"]) > 20
    assert report["weight_bytes"] == report["verification"]["num_bytes"]


def test_converting_twice_reuses_the_package_and_never_replaces_another_unasked(cache: Path, tmp_path: Path) -> None:
    package = str(tmp_path / "package")
    assert trivet(["convert", LLAMA, package], cache).returncode == 0
    assert trivet(["convert", LLAMA, package], cache).returncode == 0
    other = trivet(["convert", str(FIXTURES / "qwen3"), package], cache)
    assert other.returncode == 1
    assert "--force" in other.stderr
    assert trivet(["convert", str(FIXTURES / "qwen3"), package, "--force"], cache).returncode == 0


def test_a_weight_may_be_kept_in_another_format_than_the_rest(cache: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    arguments = ["convert", LLAMA, str(package), "--precision", "head.weight=float32"]
    assert trivet(arguments, cache).returncode == 0
    tensors = json.loads((package / "trivet.json").read_text())["tensors"]
    assert ["float32", "bfloat16"] == [tensors[name][0]["dtype"] for name in ("head.weight", "embed.weight")]
    assert trivet(["up", str(package), "--check-only"], cache).returncode == 0


def test_weights_in_int8_are_judged_as_they_are_converted_and_the_package_keeps_the_judgement(
    cache: Path, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    converted = trivet(["convert", LLAMA, str(package), "--weights", "int8"], cache)
    kept = json.loads((package / "accuracy.json").read_text())

    assert converted.returncode == 0
    assert "against bfloat16" in converted.stdout and "of positions" in converted.stdout
    assert kept["perplexity"] == pytest.approx(kept["reference_perplexity"], rel=0.05)
    assert trivet(["up", str(package), "--check-only"], cache).returncode == 0


def test_graph_prints_what_each_pass_changed(cache: Path) -> None:
    lines = trivet(["graph", LLAMA], cache).stdout.splitlines()

    assert lines[1].split()[:3] == ["merge_qkv", "65", "nodes"]
    assert "rope_kv_store" in trivet(["graph", LLAMA, "--after", "fuse_rope_kv"], cache).stdout


def test_operators_explain_names_an_implementation_for_every_node(cache: Path) -> None:
    done = trivet(["operators", "explain", LLAMA], cache)

    assert done.returncode == 0
    assert {line.split()[2] for line in done.stdout.splitlines()} == {"native", "view"}


def test_operators_verify_passes_on_every_target_of_this_machine(cache: Path) -> None:
    done = trivet(["operators", "verify"], cache)

    assert done.returncode == 0
    assert "FAILED" not in done.stdout


def test_operators_profile_has_a_row_for_every_operator_of_a_step(cache: Path) -> None:
    lines = trivet(["operators", "profile", LLAMA, "--tokens", "5"], cache).stdout.splitlines()

    assert lines[0].split()[:2] == ["operator", "nodes"]
    assert {line.split()[0] for line in lines[1:]} >= {"linear", "attention", "rope_kv_store", "add_rms_norm"}


BAD = {
    "a step beyond the limits": (["operators", "profile", LLAMA, "--tokens", "9999"], "exceeds a step of"),
    "nothing is there": (["generate", "/nonexistent", "hi"], "does not exist"),
    "a hub's name": (["generate", "org/model", "hi"], "not fetched from a hub"),
    "no such command": (["serv", LLAMA], "is not a command; did you mean serve?"),
    "no such pass": (["graph", LLAMA, "--after", "nothing"], "no such pass"),
    "a precision without a format": (["convert", LLAMA, "/tmp/never", "--precision", "head"], "wanted PATTERN="),
    "a precision that names nothing": (["convert", LLAMA, "/tmp/never", "--precision", "x*=float32"], "names no"),
    "no such target": (["operators", "verify", "--target", "sse9"], "does not run it"),
    "a context the model has not": (["generate", LLAMA, "hi", "--max-context", "999999"], "was made for 4096"),
    "more threads than CPUs": (["generate", LLAMA, "hi", "--threads", "9999"], "available"),
    "a pool smaller than a slot": (["generate", LLAMA, "hi", "--kv-memory", "1k"], "ask for at least"),
    "a pool larger than the host": (["generate", LLAMA, "hi", "--kv-memory", "9999g"], "of memory is free"),
    "not a size": (["generate", LLAMA, "hi", "--kv-memory", "lots"], "is not a size"),
    "a prompt beyond the context": (["generate", LLAMA, "hi " * 99, "--max-context", "64"], "context of 64"),
    "an empty prompt": (["generate", LLAMA, "", "--raw"], "PROMPT is empty"),
    "a question of white space": (["generate", LLAMA, " \n"], "PROMPT is empty"),
    "nothing through a pipe": (["generate", LLAMA], "PROMPT is empty"),
    "a prompt that is no text": (["generate", LLAMA, "caf\udce9"], "PROMPT is no text in UTF-8"),
    "a system message without a chat": (["generate", LLAMA, "hi", "--raw", "--system", "be brief"], "name one of them"),
    "neither a file nor a folder": (["generate", "/dev/null", "hi"], "/dev/null is neither a file nor a folder"),
    "the same to all legs": (["up", "/dev/null", "--check-only"], "/dev/null is neither a file nor a folder"),
    "a name that no file can have": (["load", "x" * 999], "cannot be looked at: File name too long"),
    "a folder of models": (["plan", str(FIXTURES)], "give the folder that holds config.json"),
    "a size of no folder": (["serve", LLAMA, "--kv-dir-bytes", "1GiB", "--port", "0"], "and no folder is named"),
    "a target that is no number": (["serve", LLAMA, "--target-itl", "nan"], "nan is no number to reckon with"),
    "a speed without end": (["replay", "x.csv", LLAMA, "--speedup", "inf"], "inf is no number to reckon with"),
    "a bandwidth of nothing": (["replay", "x.csv", LLAMA, "--kv-dir-bandwidth", "0"], "nothing moves at 0 bytes"),
    "a plan beyond the model": (["plan", LLAMA, "--context", "999999"], "was made for 4096"),
    "activations beyond the host": (["generate", LLAMA, "hi", "--max-sequences", "999999999"], "or --max-sequences"),
    "a picture where none can be": (["load", LLAMA, "--svg", "/proc/a.svg"], "trivet: /proc/a.svg: No such file"),
    "a folder that is a file": (["replay", "/dev/null/a.csv", LLAMA], "does not exist"),
    "a comparison with nowhere to go": (["bench compare", "--plot", "/nonexistent/a.svg"], "its folder does not exist"),
    "served to the world without a key": (["serve", LLAMA, "--host", "0.0.0.0"], "TRIVET_API_KEY"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_sentence_and_a_failing_exit(case: str, cache: Path) -> None:
    (command, *arguments), sentence = BAD[case]
    done = trivet([*command.split(), *arguments], cache)

    assert done.returncode != 0
    assert sentence in done.stderr


def test_a_pickle_that_is_not_read_here_is_refused_with_what_to_do(cache: Path, tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "llama" / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    done = trivet(["generate", str(tmp_path), "hi"], cache)

    assert done.returncode == 1
    assert "is no zip" in done.stderr


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed here")
def test_a_device_whose_library_is_absent_says_how_to_install_it(cache: Path) -> None:
    done = trivet(["generate", LLAMA, "hi", "--device", "torch"], cache)

    assert done.returncode == 1
    assert "pip install 'trivet[torch]'" in done.stderr


def test_a_port_in_use_is_said_before_anything_is_loaded(cache: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = trivet(["serve", LLAMA, "--port", str(taken.getsockname()[1])], cache)

    assert done.returncode == 1
    assert str(taken.getsockname()[1] if taken.fileno() != -1 else "") in done.stderr
    assert "in use" in done.stderr


@pytest.mark.network
def test_the_demo_climbs_serves_asks_and_answers(cache: Path) -> None:
    from tests.system.smollm2 import weights

    (cache / "demo").mkdir(exist_ok=True)
    os.link(weights(), cache / "demo" / weights().name)
    done = trivet(["demo"], cache)

    assert done.returncode == 0
    assert "answered   The capital of France is Paris." in done.stdout


def test_accuracy_compares_with_another_package_and_says_how_far_both_continue_alike(cache: Path) -> None:
    done = trivet(["accuracy", LLAMA, "--against", "package", "--tokens", "5,7,11", "--greedy", "4"], cache)

    assert done.returncode == 0
    assert "bfloat16 on cpu against its own format on cpu, 3 tokens" == done.stdout.splitlines()[0]
    assert "4 of 4 tokens after the text are the same" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--against", "peer"], "--against peer: no such reference"),
        (["--tokens", "1,x"], "--tokens: 'x' is no token id, wanted numbers from 0 to 511"),
        (["--tokens", "1", "--greedy", "100000"], "--tokens: 1 are given"),
        (["--tokens", "1"], "accuracy: 1 tokens to compare on, wanted at least 2"),
        (["--greedy", "100000"], "accuracy: 0 tokens to compare on, wanted at least 2"),
        (["--text", os.devnull], f"--text {os.devnull} is empty"),
    ],
)
def test_accuracy_refuses_what_it_cannot_compare(arguments: list[str], sentence: str, cache: Path) -> None:
    done = trivet(["accuracy", LLAMA, *arguments], cache)

    assert done.returncode == 1
    assert sentence in done.stderr
